//! What is registered.

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::{CPU, a_task, model, node, profile, task, tensor_task, variant, walk};
use modelless_store::{
    Error, NewModel, NewSpace, NewTask, NewVariant, Signed, SpaceKind, TaskChange, UnixMicros,
};
use modelless_types::ReplicaState::{Active, Inactive, Loading};
use modelless_types::{
    Accuracy, Ahead, AppId, Batching, Bytes, CacheFor, DeclaredRule, DeviceIx, KeepFor, LiveRule, Micros,
    ModelId, Profile, SpaceId, Task, TaskBatching, TaskId, TenantId, VariantId,
};
use std::collections::BTreeSet;

store_suite!(
    begins_with_a_default_tenant_and_application,
    gives_back_what_was_registered,
    every_change_of_the_catalog_raises_its_version_and_nothing_else_does,
    names_are_unique_where_they_are_looked_up,
    a_registration_happens_as_a_whole_or_not_at_all,
    ordinals_are_never_used_again,
    the_variant_after_the_last_ordinal_is_refused,
    registrations_side_by_side_get_ordinals_of_their_own,
    what_makes_no_sense_is_refused,
    an_output_space_of_another_kind_is_not_shared,
    another_tenant_does_not_see_the_task,
    a_newer_profile_takes_the_place_of_the_older,
    a_task_with_models_is_not_removed,
    what_counts_for_floors_is_changed_in_a_task_that_is_there,
);

async fn begins_with_a_default_tenant_and_application(backend: Backend) {
    let catalog = backend.open().await.catalog().await.unwrap();
    assert_eq!(catalog.tenants.iter().map(|t| t.id).collect::<Vec<_>>(), [TenantId::DEFAULT]);
    assert_eq!(
        catalog.apps.iter().map(|a| (a.id, a.tenant)).collect::<Vec<_>>(),
        [(AppId::DEFAULT, TenantId::DEFAULT)]
    );
    assert!(catalog.tasks.is_empty() && catalog.models.is_empty() && catalog.variants.is_empty());
}

async fn gives_back_what_was_registered(backend: Backend) {
    let store = backend.open().await;
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let tensors = store.create_task(tensor_task("digits_2")).await.unwrap();
    let embedding = NewSpace { name: "clip".to_owned(), kind: SpaceKind::Embedding { dimension: 512 } };
    let a = store.register_model(model(fashion.id, "cnn_m", &["cnn_m-fp32", "cnn_m-int8"])).await.unwrap();
    let in_space = NewModel { space: Some(embedding.clone()), ..model(tensors.id, "b", &["b"]) };
    let b = store.register_model(in_space).await.unwrap();

    assert_eq!((fashion.name.as_str(), fashion.labels.len()), ("fashion", 3));
    assert_eq!(a.model.space, fashion.default_space);
    assert_eq!(
        a.variants.iter().map(|v| (v.ordinal, v.name.as_str())).collect::<Vec<_>>(),
        [(0, "cnn_m-fp32"), (1, "cnn_m-int8")]
    );
    assert_eq!(a.variants[0].profile_on(CPU), Some(&profile(CPU)), "floats come back to the last bit");

    let catalog = store.catalog().await.unwrap();
    assert_eq!(catalog.tasks, [fashion.clone(), tensors.clone()]);
    assert_eq!(catalog.models, [a.model.clone(), b.model.clone()]);
    assert_eq!(catalog.variants, [a.variants.clone(), b.variants.clone()].concat());
    let spaces: Vec<_> = catalog.spaces.iter().map(|s| (s.id, s.name.as_str(), s.kind.clone())).collect();
    assert_eq!(
        spaces,
        [
            (fashion.default_space, "fashion", SpaceKind::labels(&fashion.labels)),
            (tensors.default_space, "digits_2", SpaceKind::tensor(&tensors.outputs)),
            (b.model.space, "clip", embedding.kind),
        ]
    );
    assert_eq!(catalog.task_named(TenantId::DEFAULT, "digits_2"), Some(&tensors));
    assert_eq!(catalog.models_of(fashion.id).collect::<Vec<_>>(), [&a.model]);
    assert_eq!(catalog.variants_of(b.model.id).count(), 1);
}

async fn every_change_of_the_catalog_raises_its_version_and_nothing_else_does(backend: Backend) {
    let store = backend.open().await;
    let mut last = store.catalog_version().await.unwrap();
    macro_rules! raises {
        ($call:expr) => {{
            let result = $call.await.unwrap();
            let now = store.catalog_version().await.unwrap();
            assert!(now > last, "{} raises {last}", stringify!($call));
            assert_eq!(store.catalog().await.unwrap().version, now);
            last = now;
            result
        }};
    }
    let fashion = raises!(store.create_task(task("fashion")));
    let m = raises!(store.register_model(model(fashion.id, "m", &["v"])));
    let v = raises!(store.add_variant(m.model.id, variant("v2")));
    raises!(store.put_profile(v.id, profile("cpu:other:1")));
    let shown = TaskChange { live_accuracy: Some(LiveRule::Shown), ..TaskChange::default() };
    raises!(store.change_task(fashion.id, shown));

    // What fails, what is so already, and what is not of the catalog, leaves it alone.
    store.change_task(fashion.id, shown).await.unwrap();
    store.change_task(fashion.id, TaskChange::default()).await.unwrap();
    store.create_task(task("fashion")).await.unwrap_err();
    store.register_model(model(fashion.id, "m2", &["v3", "v2"])).await.unwrap_err();
    store.put_profile(VariantId(99), profile(CPU)).await.unwrap_err();
    let node = store.register_node(node("a"), UnixMicros(1)).await.unwrap();
    let replica = store.add_replica(v.id, node.id, DeviceIx(0)).await.unwrap();
    walk(&*store, &replica, &[Inactive, Loading, Active], 2).await;
    store.remove_model(m.model.id, false, Signed::default()).await.unwrap_err();
    let _ = store.save_plan(None, "{}".to_owned(), UnixMicros(1)).await.unwrap();
    assert_eq!(store.catalog_version().await.unwrap(), last);

    raises!(store.remove_model(m.model.id, true, Signed::default()));
    raises!(store.remove_task(fashion.id));
    assert!(last > 0);
}

async fn names_are_unique_where_they_are_looked_up(backend: Backend) {
    let store = backend.open().await;
    let one = store.create_task(task("one")).await.unwrap();
    let two = store.create_task(task("two")).await.unwrap();
    let m = store.register_model(model(one.id, "m", &["v"])).await.unwrap();

    let exists = |error: Error, kind: &str, of: &str| {
        let Error::AlreadyExists { what, name } = error else { panic!("{error}") };
        assert_eq!((what, name.as_str()), (kind, of));
    };
    exists(store.create_task(task("one")).await.unwrap_err(), "task", "one");
    exists(store.register_model(model(one.id, "m", &[])).await.unwrap_err(), "model", "m version 1");
    exists(store.register_model(model(one.id, "n", &["v"])).await.unwrap_err(), "variant", "v");
    exists(store.register_model(model(one.id, "n", &["w", "w"])).await.unwrap_err(), "variant", "w");
    exists(store.add_variant(m.model.id, variant("v")).await.unwrap_err(), "variant", "v");

    // Another version, and another task, are other places.
    store.register_model(NewModel { version: 2, ..model(one.id, "m", &["v-2"]) }).await.unwrap();
    store.register_model(model(two.id, "m", &["v"])).await.unwrap();
}

async fn a_registration_happens_as_a_whole_or_not_at_all(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    store.register_model(model(fashion.id, "m", &["v"])).await.unwrap();
    let before = store.catalog().await.unwrap();
    let new_space = NewSpace { name: "other".to_owned(), kind: SpaceKind::Embedding { dimension: 3 } };
    let half_good = NewModel { space: Some(new_space), ..model(fashion.id, "n", &["fresh", "v"]) };
    store.register_model(half_good).await.unwrap_err();
    assert_eq!(store.catalog().await.unwrap(), before);
    let after = store.register_model(model(fashion.id, "n", &["fresh"])).await.unwrap();
    assert_eq!(after.variants[0].ordinal, 1, "what was not registered took no ordinal");
}

async fn ordinals_are_never_used_again(backend: Backend) {
    let store = backend.open().await;
    let one = store.create_task(task("one")).await.unwrap();
    let two = store.create_task(task("two")).await.unwrap();
    let a = store.register_model(model(one.id, "a", &["a0", "a1"])).await.unwrap();
    store.remove_model(a.model.id, false, Signed::default()).await.unwrap();
    let b = store.register_model(model(one.id, "a", &["a0"])).await.unwrap();
    assert_eq!(b.variants[0].ordinal, 2);
    assert!(b.model.id > a.model.id && b.variants[0].id > a.variants[1].id, "nor are ids");
    assert_eq!(store.add_variant(b.model.id, variant("a9")).await.unwrap().ordinal, 3);
    let other = store.register_model(model(two.id, "a", &["a0"])).await.unwrap();
    assert_eq!(other.variants[0].ordinal, 0, "each task counts for itself");
}

async fn the_variant_after_the_last_ordinal_is_refused(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let bare = |n: usize| NewVariant { profiles: Vec::new(), ..variant(&format!("v{n}")) };
    let many = |name: &str, range: std::ops::Range<usize>| NewModel {
        variants: range.map(bare).collect(),
        ..model(fashion.id, name, &[])
    };
    let last = store.register_model(many("most", 0..254)).await.unwrap();
    let error = store.register_model(many("three", 254..257)).await.unwrap_err();
    assert!(matches!(error, Error::TooManyVariants { wanted: 3, free: 2, limit: 256, .. }), "{error}");
    assert!(error.to_string().contains("fashion") && error.to_string().contains("256"), "{error}");
    let filled = store.register_model(many("two", 254..256)).await.unwrap();
    assert_eq!(filled.variants[1].ordinal, 255);
    store.remove_model(filled.model.id, false, Signed::default()).await.unwrap();
    let error = store.add_variant(last.model.id, bare(256)).await.unwrap_err();
    assert!(matches!(error, Error::TooManyVariants { wanted: 1, free: 0, .. }), "{error}");
    store.register_model(many("none", 0..0)).await.unwrap();
}

async fn registrations_side_by_side_get_ordinals_of_their_own(backend: Backend) {
    let stores = [backend.open().await, backend.open().await];
    let fashion = a_task(&*stores[0]).await;
    let mut all = tokio::task::JoinSet::new();
    for n in 0..12 {
        let store = stores[n % 2].clone();
        let new = model(fashion.id, &format!("m{n}"), &[&format!("v{n}a"), &format!("v{n}b")]);
        all.spawn(async move { store.register_model(new).await.unwrap() });
    }
    let done = all.join_all().await;
    let ordinals: BTreeSet<u8> = done.iter().flat_map(|r| r.variants.iter().map(|v| v.ordinal)).collect();
    assert_eq!(ordinals, (0..24).collect());
    assert_eq!(stores[1].catalog().await.unwrap().variants.len(), 24);
}

async fn what_makes_no_sense_is_refused(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let m = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap();
    let before = store.catalog().await.unwrap();

    for name in ["", "stats", "Fashion", "a b", "a/b", "naïve", "a\0b", &"x".repeat(201)] {
        refused(store.create_task(task(name)).await);
    }
    refused(store.create_task(NewTask { labels: Vec::new(), ..task("x") }).await);
    refused(store.create_task(NewTask { outputs: Vec::new(), ..tensor_task("x") }).await);
    refused(store.create_task(NewTask { description: "\0".to_owned(), ..task("x") }).await);
    for adapter in ["", "{", "{}}", "nan", "{\"a\": \"\0\"}"] {
        let adapter = adapter.to_owned();
        refused(store.register_model(NewModel { adapter, ..model(fashion.id, "x", &[]) }).await);
    }
    for artefact in ["", "../../etc/passwd", &"A".repeat(64), &"0".repeat(63)] {
        let artefact = artefact.to_owned();
        refused(store.add_variant(m.model.id, NewVariant { artefact, ..variant("x") }).await);
    }
    let twice = NewVariant { profiles: vec![profile(CPU), profile(CPU)], ..variant("x") };
    refused(store.add_variant(m.model.id, twice).await);
    let huge = NewVariant { artefact_bytes: Bytes(u64::MAX), ..variant("x") };
    refused(store.add_variant(m.model.id, huge).await);

    let good = profile(CPU);
    let mut bad: Vec<Profile> = vec![good.clone(); 5];
    bad[0].latency.clear();
    bad[1].latency[0].mean_us = f64::NAN;
    bad[2].latency[1].var_us2 = -1.0;
    bad[3].latency.reverse();
    bad[4].accuracy.low = Accuracy::ONE;
    for profile in bad {
        refused(store.put_profile(m.variants[0].id, profile).await);
    }
    refused(store.save_plan(None, "{".to_owned(), UnixMicros(1)).await);
    refused(store.save_plan(None, "{}".to_owned(), UnixMicros(u64::MAX)).await);
    refused(store.register_node(node(""), UnixMicros(1)).await);
    refused(store.secret("", [0; 32]).await);

    missing(store.register_model(model(TaskId(99), "x", &[])).await);
    missing(store.add_variant(ModelId(99), variant("x")).await);
    missing(store.remove_model(ModelId(99), true, Signed::default()).await);
    missing(store.remove_task(TaskId(99)).await);
    missing(store.create_task(NewTask { tenant: TenantId(9), ..task("x") }).await);
    assert_eq!(store.catalog().await.unwrap(), before);
}

async fn an_output_space_of_another_kind_is_not_shared(backend: Backend) {
    let store = backend.open().await;
    let one = a_task(&*store).await;
    let shared = NewSpace { name: "fashion".to_owned(), kind: SpaceKind::labels(&one.labels) };
    let two = store.create_task(NewTask { space: Some(shared.clone()), ..task("two") }).await.unwrap();
    assert_eq!(one.default_space, two.default_space, "the same labels under the same name are one space");
    let reordered = NewTask {
        space: Some(NewSpace { kind: SpaceKind::labels(&["bag".to_owned()]), ..shared }),
        ..task("three")
    };
    refused(store.create_task(reordered).await);
    assert_eq!(store.catalog().await.unwrap().spaces.len(), 1);
    assert_eq!(one.default_space, SpaceId(1));
}

async fn another_tenant_does_not_see_the_task(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    missing(store.register_model(NewModel { tenant: TenantId(2), ..model(fashion.id, "m", &[]) }).await);
}

async fn a_newer_profile_takes_the_place_of_the_older(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let v = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants.remove(0);
    let slower = Profile { load_time: Micros(99), ..profile(CPU) };
    store.put_profile(v.id, slower.clone()).await.unwrap();
    // Byte order, whatever the collation of the database: capitals first.
    store.put_profile(v.id, profile("cpu:Zen:1")).await.unwrap();
    let profiles = store.catalog().await.unwrap().variants.remove(0).profiles;
    assert_eq!(profiles, [profile("cpu:Zen:1"), slower]);
    missing(store.put_profile(VariantId(99), profile(CPU)).await);
}

async fn a_task_with_models_is_not_removed(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let m = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap();
    let error = store.remove_task(fashion.id).await.unwrap_err();
    assert!(matches!(error, Error::InUse { what: "task", .. }), "{error}");
    store.remove_model(m.model.id, false, Signed::default()).await.unwrap();
    store.remove_task(fashion.id).await.unwrap();
    assert!(store.catalog().await.unwrap().tasks.is_empty());
    assert!(a_task(&*store).await.id > fashion.id);
}

async fn what_counts_for_floors_is_changed_in_a_task_that_is_there(backend: Backend) {
    let store = backend.open().await;
    let made = a_task(&*store).await;
    assert_eq!(made.live_accuracy, LiveRule::Floors);
    assert_eq!((made.cache.to_string(), made.keep.to_string()), ("90s".into(), "10m".into()));
    let (live, declared, cache) = (LiveRule::Shown, DeclaredRule::Floors, CacheFor::OFF);
    let change = TaskChange {
        live_accuracy: Some(live),
        declared_accuracy: Some(declared),
        cache: Some(cache),
        ..TaskChange::default()
    };
    let changed = store.change_task(made.id, change).await.unwrap();
    let wanted = Task { live_accuracy: live, declared_accuracy: declared, cache, ..made.clone() };
    assert_eq!(changed, wanted);
    let (keep, ahead) = (KeepFor::ALWAYS, Ahead::Off);
    assert_eq!(made.ahead, Ahead::On);
    let change_of_both = TaskChange { keep: Some(keep), ahead: Some(ahead), ..TaskChange::default() };
    let kept = store.change_task(made.id, change_of_both).await.unwrap();
    assert_eq!(kept, Task { keep, ahead, ..changed });
    assert_eq!(store.catalog().await.unwrap().tasks, std::slice::from_ref(&kept));
    assert!(matches!(kept.batching, Some(Batching::Fixed { .. })), "{kept:?}");
    for batching in [TaskBatching::AsNode, TaskBatching::Own(Batching::Off)] {
        let change = TaskChange { batching: Some(batching), ..TaskChange::default() };
        let batched = store.change_task(made.id, change).await.unwrap();
        assert_eq!(batched, Task { batching: batching.own(), ..kept.clone() });
        assert_eq!(store.catalog().await.unwrap().tasks, [batched]);
    }
    missing(store.change_task(TaskId(99), change).await);
}
