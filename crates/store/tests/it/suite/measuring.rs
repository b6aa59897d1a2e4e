//! Who measures what.

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::{CPU, model, profile, task};
use modelless_store::{Evidence, Measuring, SetArtefact, Signed, UnixMicros};
use modelless_types::{Accuracy, Profile, Provenance, Unsteady, VariantId};

store_suite! {
    what_a_model_is_measured_with_is_kept_until_it_is_removed,
    only_one_node_measures_a_variant_until_its_time_is_over,
    a_profile_ends_the_measuring_and_none_begins_where_there_is_one,
    what_was_measured_in_a_hurry_may_be_measured_again,
    what_was_measured_in_an_unsteady_minute_may_be_measured_again_as_often_as_it_says,
}

const OTHER: &str = "cpu:another:8";

fn by(node: &str, variant: VariantId, until: u64) -> Measuring {
    Measuring {
        variant,
        device_class: OTHER.to_owned(),
        node: node.to_owned(),
        until: UnixMicros(until),
        progress: "loading".to_owned(),
        failed: None,
        attempts: 0,
    }
}

async fn what_a_model_is_measured_with_is_kept_until_it_is_removed(backend: Backend) {
    let store = backend.open().await;
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let set = SetArtefact { name: "sample".to_owned(), artefact: "ab".repeat(32) };
    let declared = Accuracy::from_ppm(900_000);
    let evidence = Evidence { set: Some(set), declared, within_ms: Some(9), promote: None };
    let with = store.register_with(model(fashion.id, "m", &["v"]), evidence.clone()).await.unwrap();
    let without = store.register_model(model(fashion.id, "n", &["w"])).await.unwrap();
    assert_eq!(store.evidence(with.model.id).await.unwrap(), evidence);
    assert_eq!(store.evidence(without.model.id).await.unwrap(), Evidence::default());
    let wrong = SetArtefact { name: "sample".to_owned(), artefact: "../etc".to_owned() };
    let wrong = Evidence { set: Some(wrong), ..Evidence::default() };
    refused(store.register_with(model(fashion.id, "o", &["x"]), wrong).await);
    store.claim_measuring(by("one", with.variants[0].id, 10), UnixMicros(1)).await.unwrap();
    store.remove_model(with.model.id, false, Signed::default()).await.unwrap();
    assert_eq!(store.evidence(with.model.id).await.unwrap(), Evidence::default());
    assert_eq!(store.measurings().await.unwrap(), []);
}

async fn only_one_node_measures_a_variant_until_its_time_is_over(backend: Backend) {
    let store = backend.open().await;
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let variant = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants[0].id;
    let version = store.catalog_version().await.unwrap();
    let claim = async |node, until, now| {
        store.claim_measuring(by(node, variant, until), UnixMicros(now)).await.unwrap().unwrap().node
    };
    assert_eq!(claim("one", 100, 50).await, "one");
    assert_eq!(claim("two", 200, 99).await, "one");
    assert_eq!(claim("one", 150, 99).await, "one");
    assert_eq!(claim("two", 200, 149).await, "one");
    assert_eq!(claim("two", 200, 150).await, "two");
    let failed = Measuring { failed: Some("broken".to_owned()), attempts: 3, ..by("two", variant, 900) };
    assert_eq!(store.claim_measuring(failed.clone(), UnixMicros(160)).await.unwrap(), Some(failed.clone()));
    assert_eq!(claim("one", 999, 500).await, "two");
    assert_eq!(store.measurings().await.unwrap(), [failed]);
    assert_eq!(store.catalog_version().await.unwrap(), version, "nothing that others read has changed");
    missing(store.claim_measuring(by("one", VariantId(77), 9), UnixMicros(1)).await);
    refused(store.claim_measuring(by("", variant, 9), UnixMicros(1)).await);
}

async fn what_was_measured_in_a_hurry_may_be_measured_again(backend: Backend) {
    let store = backend.open().await;
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let variant = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants[0].id;
    let mut coarse = profile(OTHER);
    coarse.detail.coarse = true;
    store.put_profile(variant, coarse).await.unwrap();
    let wanted = by("one", variant, 100);
    assert_eq!(store.claim_measuring(wanted.clone(), UnixMicros(1)).await.unwrap(), Some(wanted.clone()));
    store.put_profile(variant, profile(OTHER)).await.unwrap();
    assert_eq!(store.measurings().await.unwrap(), []);
    assert_eq!(store.claim_measuring(wanted, UnixMicros(1)).await.unwrap(), None);
}

async fn what_was_measured_in_an_unsteady_minute_may_be_measured_again_as_often_as_it_says(backend: Backend) {
    let store = backend.open().await;
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let variant = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants[0].id;
    let mut unsteady = profile(OTHER);
    let seen = Unsteady { sizes: 0.25, same_work: 0.125, stolen: 0.3, tries: 1, left: 1 };
    unsteady.detail.unsteady = Some(seen);
    store.put_profile(variant, unsteady.clone()).await.unwrap();
    let catalog = store.catalog().await.unwrap();
    let kept = catalog.variants.iter().find(|known| known.id == variant).unwrap().profile_on(OTHER).unwrap();
    assert_eq!(kept, &unsteady, "it is kept to the last bit");
    let wanted = by("one", variant, 100);
    assert_eq!(store.claim_measuring(wanted.clone(), UnixMicros(1)).await.unwrap(), Some(wanted.clone()));
    unsteady.detail.unsteady = Some(Unsteady { tries: 2, left: 0, ..seen });
    store.put_profile(variant, unsteady.clone()).await.unwrap();
    assert_eq!(store.measurings().await.unwrap(), [], "it was measured");
    assert_eq!(store.claim_measuring(wanted, UnixMicros(1)).await.unwrap(), None, "and often enough");
    unsteady.detail.unsteady = Some(Unsteady { stolen: f64::NAN, ..seen });
    refused(store.put_profile(variant, unsteady).await);
}

async fn a_profile_ends_the_measuring_and_none_begins_where_there_is_one(backend: Backend) {
    let store = backend.open().await;
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let variant = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants[0].id;
    let there = Measuring { device_class: CPU.to_owned(), ..by("one", variant, 100) };
    assert_eq!(store.claim_measuring(there, UnixMicros(1)).await.unwrap(), None);
    store.claim_measuring(by("one", variant, 100), UnixMicros(1)).await.unwrap();
    store.put_profile(variant, profile(OTHER)).await.unwrap();
    assert_eq!(store.measurings().await.unwrap(), []);
    assert_eq!(store.claim_measuring(by("two", variant, 100), UnixMicros(1)).await.unwrap(), None);
    let third = Measuring { device_class: "cpu:third:8".to_owned(), ..by("two", variant, 100) };
    store.claim_measuring(third.clone(), UnixMicros(1)).await.unwrap();
    let estimate = Profile { latency_provenance: Provenance::Estimated, ..profile("cpu:third:8") };
    store.put_profile(variant, estimate).await.unwrap();
    assert_eq!(store.measurings().await.unwrap(), std::slice::from_ref(&third), "an estimate ends nothing");
    assert_eq!(store.claim_measuring(third.clone(), UnixMicros(1)).await.unwrap(), Some(third.clone()));
    // Who estimates may be slower than who measures.
    let measured = profile("cpu:third:8");
    store.put_profile(variant, measured.clone()).await.unwrap();
    let late = Profile { latency_provenance: Provenance::Estimated, ..profile("cpu:third:8") };
    store.put_profile(variant, late).await.unwrap();
    let catalog = store.catalog().await.unwrap();
    let kept = catalog.variants.iter().find(|known| known.id == variant).unwrap().profile_on("cpu:third:8");
    assert_eq!(kept, Some(&measured), "no estimate takes its place");
    assert_eq!(store.claim_measuring(third, UnixMicros(1)).await.unwrap(), None);
}
