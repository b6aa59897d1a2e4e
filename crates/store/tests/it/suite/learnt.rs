//! What live traffic says of what was measured.

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::{CPU, model, profile, task};
use modelless_store::{
    Feedback, Kept, LIVE_MEMORY, LiveAccuracy, Measuring, Signed, StaleProfile, Store, UnixMicros, Verdict,
};
use modelless_types::{Accuracy, Profile, Provenance, VariantId};

store_suite! {
    a_profile_is_marked_until_it_is_measured_again_or_its_node_takes_that_back,
    what_is_marked_may_be_measured_although_there_is_a_profile,
    a_verdict_counts_once_for_each_query_and_the_last_one_stands,
    what_was_said_goes_with_its_model_and_with_time,
    a_flag_is_part_of_the_catalog_and_counts_for_floors_where_the_task_says_so,
}

fn by(node: &str, variant: VariantId) -> StaleProfile {
    StaleProfile {
        variant,
        device_class: CPU.to_owned(),
        node: node.to_owned(),
        ratio_ppm: 2_000_000,
        since: UnixMicros(7),
    }
}

/// A model with one variant that has a profile.
async fn measured(store: &dyn Store) -> VariantId {
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let variant = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants[0].id;
    store.put_profile(variant, profile(CPU)).await.unwrap();
    variant
}

async fn a_profile_is_marked_until_it_is_measured_again_or_its_node_takes_that_back(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let elsewhere = StaleProfile { device_class: "cpu:other:1".to_owned(), ..by("one", variant) };
    assert!(!store.mark_stale(elsewhere).await.unwrap(), "there is no such profile");
    let estimate = Profile { latency_provenance: Provenance::Estimated, ..profile("cpu:third:1") };
    store.put_profile(variant, estimate).await.unwrap();
    let third = StaleProfile { device_class: "cpu:third:1".to_owned(), ..by("one", variant) };
    assert!(!store.mark_stale(third).await.unwrap(), "an estimate waits to be measured anyway");
    let before = store.catalog_version().await.unwrap();
    assert!(store.mark_stale(by("one", variant)).await.unwrap());
    let again = StaleProfile { ratio_ppm: 3_000_000, since: UnixMicros(9), ..by("two", variant) };
    assert!(store.mark_stale(again.clone()).await.unwrap());
    let catalog = store.catalog().await.unwrap();
    assert!(catalog.version > before);
    assert_eq!(catalog.stale, [StaleProfile { since: UnixMicros(7), ..again }]);
    assert_eq!(catalog.stale(variant, CPU), catalog.stale.first());
    assert!(!store.clear_stale(variant, CPU, "one").await.unwrap(), "it is another node's");
    assert!(store.clear_stale(variant, CPU, "two").await.unwrap());
    assert_eq!(store.catalog().await.unwrap().stale, []);
    store.mark_stale(by("one", variant)).await.unwrap();
    store.put_profile(variant, profile(CPU)).await.unwrap();
    assert_eq!(store.catalog().await.unwrap().stale, []);
    refused(store.mark_stale(StaleProfile { node: String::new(), ..by("one", variant) }).await);
}

async fn what_is_marked_may_be_measured_although_there_is_a_profile(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let wanted = Measuring {
        variant,
        device_class: CPU.to_owned(),
        node: "one".to_owned(),
        until: UnixMicros(100),
        progress: "loading".to_owned(),
        failed: None,
        attempts: 0,
    };
    assert_eq!(store.claim_measuring(wanted.clone(), UnixMicros(1)).await.unwrap(), None);
    store.mark_stale(by("one", variant)).await.unwrap();
    assert_eq!(store.claim_measuring(wanted.clone(), UnixMicros(1)).await.unwrap(), Some(wanted.clone()));
    store.clear_stale(variant, CPU, "one").await.unwrap();
    assert_eq!(store.measurings().await.unwrap(), []);
    assert_eq!(store.claim_measuring(wanted, UnixMicros(1)).await.unwrap(), None);
}

fn said(query: &str, variant: VariantId, correct: bool) -> Feedback {
    Feedback { query: query.to_owned(), variant, answered: UnixMicros(1_000), correct }
}

async fn a_verdict_counts_once_for_each_query_and_the_last_one_stands(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let live = |correct, wrong| LiveAccuracy { variant, correct, wrong, flagged: None };
    let version = store.catalog_version().await.unwrap();
    let given = vec![
        said("a", variant, true),
        said("b", variant, false),
        said("a", variant, true),
        said("b", variant, true),
        said("c", VariantId(999), true),
    ];
    let stored = store.put_feedback(given, UnixMicros(0)).await.unwrap();
    let wanted = [
        Verdict { kept: Kept::New, live: live(1, 0) },
        Verdict { kept: Kept::New, live: live(1, 1) },
        Verdict { kept: Kept::Same, live: live(1, 1) },
        Verdict { kept: Kept::Changed, live: live(2, 0) },
    ];
    assert_eq!(stored[..4], wanted);
    assert_eq!(stored[4].kept, Kept::Gone);
    assert_eq!(store.live_accuracies().await.unwrap(), [live(2, 0)]);
    assert_eq!(store.catalog_version().await.unwrap(), version, "verdicts have nobody read everything anew");
    refused(store.put_feedback(vec![said("", variant, true)], UnixMicros(0)).await);
    drop(store);
    let store = backend.open().await;
    assert_eq!(store.live_accuracies().await.unwrap(), [live(2, 0)]);
    let again = store.put_feedback(vec![said("a", variant, true)], UnixMicros(0)).await.unwrap();
    assert_eq!(again[0].kept, Kept::Same);
}

async fn what_was_said_goes_with_its_model_and_with_time(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    store.put_feedback(vec![said("a", variant, true)], UnixMicros(0)).await.unwrap();
    // Its query is forgotten, so it would count again; whoever asks refuses queries that old.
    let later = store.put_feedback(vec![said("a", variant, true)], UnixMicros(1_001)).await.unwrap();
    assert_eq!((later[0].kept, later[0].live.correct), (Kept::New, 2));
    let many: Vec<Feedback> = (0..300).map(|at| said(&format!("q{at}"), variant, at % 3 > 0)).collect();
    store.put_feedback(many, UnixMicros(0)).await.unwrap();
    let live = store.live_accuracies().await.unwrap();
    assert_eq!((live[0].correct, live[0].wrong), (202, 100));
    assert!(live[0].correct + live[0].wrong < LIVE_MEMORY);
    store.mark_stale(by("one", variant)).await.unwrap();
    let catalog = store.catalog().await.unwrap();
    store.remove_model(catalog.models[0].id, false, Signed::default()).await.unwrap();
    let catalog = store.catalog().await.unwrap();
    assert_eq!((catalog.stale, catalog.live), (Vec::new(), Vec::new()));
    assert_eq!(store.live_accuracies().await.unwrap(), []);
}

async fn a_flag_is_part_of_the_catalog_and_counts_for_floors_where_the_task_says_so(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    missing(store.flag_accuracy(variant, None).await);
    store.put_feedback(vec![said("a", variant, false)], UnixMicros(0)).await.unwrap();
    let before = store.catalog().await.unwrap();
    let floor = |catalog: &modelless_store::Catalog| {
        let known = &catalog.variants[0];
        catalog.floor_accuracy(&catalog.tasks[0], variant, &known.profiles[0])
    };
    let low = Accuracy::from_ppm(123_456).unwrap();
    store.flag_accuracy(variant, Some(low)).await.unwrap();
    let after = store.catalog().await.unwrap();
    assert!(after.version > before.version);
    assert_eq!(after.live_accuracy(variant).unwrap().flagged, Some(low));
    assert_eq!(after.tasks[0].live_accuracy, modelless_types::LiveRule::Floors);
    assert_eq!(floor(&after), low);
    assert!(floor(&before) > low);
    let mut shown = after.clone();
    shown.tasks[0].live_accuracy = modelless_types::LiveRule::Shown;
    assert_eq!(floor(&shown), floor(&before));
    store.flag_accuracy(variant, None).await.unwrap();
    assert_eq!(floor(&store.catalog().await.unwrap()), floor(&before));
}
