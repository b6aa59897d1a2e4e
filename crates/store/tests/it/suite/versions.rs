//! Which version of a name answers, who changed that, and what was measured ahead.

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::{CPU, a_task, model, node, profile, walk};
use modelless_store::{
    Error, Evidence, MEASURED_KEPT, NewModel, Registered, Signed, Store, UnixMicros, VersionAction,
    VersionChange, Wish,
};
use modelless_types::ReplicaState::{Active, Inactive, Loading};
use modelless_types::{DeviceIx, ModelId, Profile, TaskId};
use std::sync::Arc;
use tokio::task::JoinSet;

store_suite! {
    the_first_version_of_a_name_answers_and_later_ones_wait_until_they_are_promoted,
    rolling_back_goes_through_the_defaults_before_and_stops_at_the_first,
    two_who_roll_back_at_once_go_back_one_step,
    the_default_is_removed_only_by_force_and_the_one_before_it_answers_again,
    every_change_of_a_version_is_told_with_who_and_when,
    changes_of_a_version_are_changes_of_the_catalogue,
    what_was_measured_is_found_under_its_key_for_a_while,
    a_claim_and_a_profile_at_the_same_moment_leave_no_claim_behind,
    a_wish_to_be_the_default_is_granted_once_and_not_again_after_it_was_taken_back,
}

async fn a_wish_to_be_the_default_is_granted_once_and_not_again_after_it_was_taken_back(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let wished = |version: u32| {
        let variant = format!("v{version}");
        let new = NewModel { version, ..model(task, "m", &[&variant]) };
        let evidence = Evidence { promote: Some("Ada".to_owned()), ..Evidence::default() };
        store.register_with(new, evidence)
    };
    let ids = [wished(1).await, wished(2).await, wished(3).await].map(|made| made.unwrap().model.id);
    let wish = async |at: usize| store.evidence(ids[at]).await.unwrap().promote;
    let default = async || {
        let catalog = store.catalog().await.unwrap();
        let defaults = catalog.defaults();
        ids.iter().position(|id| defaults.contains(id)).map(|at| at + 1)
    };
    assert_eq!((wish(0).await, default().await), (None, Some(1)), "the first is it at once");
    let version = store.catalog_version().await.unwrap();
    let granted = store.wish(ids[1], Wish::Granted(UnixMicros(7))).await.unwrap().expect("a change");
    assert!(store.catalog_version().await.unwrap() > version);
    assert_eq!((granted.before, granted.after, granted.by.at), (Some(1), Some(2), UnixMicros(7)));
    assert_eq!((granted.action, &*granted.by.who), (VersionAction::Promoted, "Ada"));
    assert_eq!((wish(1).await, default().await), (None, Some(2)));
    store.roll_back(ids[1], Signed::default()).await.unwrap();
    assert_eq!(store.wish(ids[1], Wish::Granted(UnixMicros(8))).await.unwrap(), None, "it was granted");
    assert_eq!(default().await, Some(1));
    // Who says so himself has fulfilled it.
    store.promote(ids[2], Signed::default()).await.unwrap();
    store.roll_back(ids[2], Signed::default()).await.unwrap();
    assert_eq!((wish(2).await, default().await), (None, Some(1)));
    store.wish(ids[2], Wish::Made("Bob".to_owned())).await.unwrap();
    assert_eq!(wish(2).await.as_deref(), Some("Bob"));
    assert_eq!(store.wish(ids[2], Wish::Overtaken).await.unwrap(), None);
    assert_eq!((wish(2).await, default().await), (None, Some(1)));
    refused(store.wish(ids[2], Wish::Made("a\nb".to_owned())).await);
    missing(store.wish(ModelId(99), Wish::Overtaken).await);
}

async fn register(store: &dyn Store, task: TaskId, version: u32, promote: bool) -> Registered {
    let variant = format!("v{version}");
    let new = NewModel { version, promote, by: by("ann", version.into()), ..model(task, "m", &[&variant]) };
    store.register_model(new).await.unwrap()
}

fn by(who: &str, at: u64) -> Signed {
    Signed { who: who.to_owned(), at: UnixMicros(at) }
}

/// The default versions of `m`.
async fn answers(store: &dyn Store) -> Vec<u32> {
    let catalog = store.catalog().await.unwrap();
    let defaults = catalog.defaults();
    catalog.models.iter().filter(|model| defaults.contains(&model.id)).map(|model| model.version).collect()
}

async fn the_first_version_of_a_name_answers_and_later_ones_wait_until_they_are_promoted(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let first = register(&*store, task, 3, false).await;
    assert!(first.model.promoted > 0, "the first of a name, whatever its number");
    let second = register(&*store, task, 4, false).await;
    assert_eq!((second.model.promoted, answers(&*store).await), (0, vec![3]));
    register(&*store, task, 5, true).await;
    assert_eq!(answers(&*store).await, [5]);
    let change = store.promote(second.model.id, by("bob", 9)).await.unwrap();
    assert_eq!((change.before, change.after, change.version), (Some(5), Some(4), 4));
    assert_eq!(answers(&*store).await, [4]);
    let other = NewModel { owner: "team a".to_owned(), ..model(task, "n", &["w"]) };
    let other = store.register_model(other).await.unwrap();
    assert!(other.model.promoted > 0, "another name has its own default");
    assert_eq!(store.catalog().await.unwrap().models.last().unwrap(), &other.model);
    assert_eq!(other.model.owner, "team a");
    missing(store.promote(ModelId(99), Signed::default()).await);
    refused(store.promote(second.model.id, by("tab\t", 1)).await);
    refused(store.register_model(NewModel { owner: " ".to_owned(), ..model(task, "o", &["x"]) }).await);
}

async fn rolling_back_goes_through_the_defaults_before_and_stops_at_the_first(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let (one, two, three) = (
        register(&*store, task, 1, false).await.model.id,
        register(&*store, task, 2, true).await.model.id,
        register(&*store, task, 3, true).await.model.id,
    );
    let back = async |from| store.roll_back(from, by("ann", 1)).await;
    assert_eq!(back(three).await.unwrap().after, Some(2));
    assert_eq!(answers(&*store).await, [2]);
    assert_eq!(back(two).await.unwrap().after, Some(1));
    let error = back(one).await.unwrap_err();
    assert!(matches!(error, Error::NothingBefore { version: 1, .. }), "{error}");
    assert_eq!(answers(&*store).await, [1]);
    // Promoted again it is the last default, and what was rolled back is not come back to.
    store.promote(three, by("ann", 2)).await.unwrap();
    assert_eq!(back(three).await.unwrap().after, Some(1));
    missing(back(ModelId(99)).await);
}

async fn two_who_roll_back_at_once_go_back_one_step(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    register(&*store, task, 1, false).await;
    register(&*store, task, 2, true).await;
    let three = register(&*store, task, 3, true).await.model.id;
    let (left, right) = (backend.open().await, backend.open().await);
    let (left, right) =
        tokio::join!(left.roll_back(three, by("ann", 1)), right.roll_back(three, by("bob", 1)));
    let (won, lost) = if left.is_ok() { (left, right) } else { (right, left) };
    assert_eq!(won.unwrap().after, Some(2));
    let error = lost.unwrap_err();
    assert!(matches!(error, Error::DefaultChanged { version: 3, .. }), "{error}");
    assert!(error.to_string().contains("version 2 is"), "{error}");
    assert_eq!(answers(&*store).await, [2]);
}

async fn the_default_is_removed_only_by_force_and_the_one_before_it_answers_again(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let one = register(&*store, task, 1, false).await;
    let two = register(&*store, task, 2, true).await.model.id;
    let three = register(&*store, task, 3, false).await.model.id;
    let error = store.remove_model(two, false, by("ann", 1)).await.unwrap_err();
    assert!(matches!(error, Error::InUse { what: "model", .. }), "{error}");
    assert!(error.to_string().contains("m version 2") && error.to_string().contains("version 1"), "{error}");
    assert_eq!(answers(&*store).await, [2]);
    store.remove_model(two, true, by("ann", 1)).await.unwrap();
    assert_eq!(answers(&*store).await, [1]);
    let error = store.remove_model(one.model.id, false, by("ann", 1)).await.unwrap_err();
    assert!(error.to_string().contains("no version of it answers"), "{error}");
    store.remove_model(one.model.id, true, by("ann", 1)).await.unwrap();
    assert_eq!(answers(&*store).await, [0_u32; 0], "a candidate is not promoted by a removal");
    store.remove_model(three, false, by("ann", 1)).await.unwrap();

    // The only version of a name goes unless a replica of it serves.
    let last = register(&*store, task, 4, false).await;
    let at = store.register_node(node("a"), UnixMicros(1)).await.unwrap();
    let replica = store.add_replica(last.variants[0].id, at.id, DeviceIx(0)).await.unwrap();
    walk(&*store, &replica, &[Inactive, Loading, Active], 2).await;
    let error = store.remove_model(last.model.id, false, by("ann", 1)).await.unwrap_err();
    assert!(error.to_string().contains("node \"a\""), "{error}");
}

async fn every_change_of_a_version_is_told_with_who_and_when(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    register(&*store, task, 1, false).await;
    let two = register(&*store, task, 2, false).await.model.id;
    store.promote(two, by("bob", 10)).await.unwrap();
    let again = store.promote(two, by("eve", 11)).await.unwrap();
    assert_eq!((again.before, again.after), (Some(2), Some(2)), "it was the default already");
    store.roll_back(two, by("ann", 12)).await.unwrap();
    store.remove_model(two, false, by("", 13)).await.unwrap();
    let all = store.version_changes(task, "m", 99).await.unwrap();
    let told = |change: &VersionChange| {
        let VersionChange { version, action, before, after, ref by, .. } = *change;
        (version, action, before, after, by.who.clone(), by.at.0)
    };
    let told: Vec<_> = all.iter().map(told).collect();
    let (ann, bob) = ("ann".to_owned(), "bob".to_owned());
    assert_eq!(
        told,
        [
            (2, VersionAction::Removed, Some(1), Some(1), String::new(), 13),
            (2, VersionAction::RolledBack, Some(2), Some(1), ann.clone(), 12),
            (2, VersionAction::Promoted, Some(1), Some(2), bob, 10),
            (2, VersionAction::Registered, Some(1), Some(1), ann.clone(), 2),
            (1, VersionAction::Registered, None, Some(1), ann, 1),
        ]
    );
    assert!(all.is_sorted_by(|a, b| a.seq > b.seq) && all.iter().all(|change| change.task == task));
    assert_eq!(store.version_changes(task, "m", 2).await.unwrap(), all[..2]);
    assert_eq!(store.version_changes(task, "n", 9).await.unwrap(), []);
}

async fn changes_of_a_version_are_changes_of_the_catalogue(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    register(&*store, task, 1, false).await;
    let two = register(&*store, task, 2, false).await.model.id;
    let version = async || store.catalog_version().await.unwrap();
    let before = version().await;
    store.promote(two, by("a", 1)).await.unwrap();
    assert_eq!(version().await, before + 1);
    store.promote(two, by("a", 1)).await.unwrap();
    assert_eq!(version().await, before + 1, "nothing that others read has changed");
    store.roll_back(two, by("a", 1)).await.unwrap();
    assert_eq!(version().await, before + 2);
    store.roll_back(two, by("a", 1)).await.unwrap_err();
    assert_eq!(version().await, before + 2);
}

async fn what_was_measured_is_found_under_its_key_for_a_while(backend: Backend) {
    let store = backend.open().await;
    let version = store.catalog_version().await.unwrap();
    let key = |number: u64| format!("{number:064x}");
    let (first, second) = (profile(CPU), Profile { peak: None, ..profile("cpu:b:1") });
    store.keep_measured(&key(1), &first, UnixMicros(100)).await.unwrap();
    assert_eq!(store.measured(&key(1), UnixMicros(100)).await.unwrap(), Some(first));
    assert_eq!(store.measured(&key(1), UnixMicros(101)).await.unwrap(), None, "too old");
    assert_eq!(store.measured(&key(2), UnixMicros(0)).await.unwrap(), None);
    store.keep_measured(&key(1), &second, UnixMicros(200)).await.unwrap();
    assert_eq!(store.measured(&key(1), UnixMicros(101)).await.unwrap(), Some(second.clone()));
    refused(store.keep_measured("../key", &second, UnixMicros(1)).await);
    assert_eq!(store.catalog_version().await.unwrap(), version, "nobody reads it but who measures");
    for number in 2..=MEASURED_KEPT + 1 {
        store.keep_measured(&key(number), &second, UnixMicros(300)).await.unwrap();
    }
    assert_eq!(store.measured(&key(1), UnixMicros(0)).await.unwrap(), None, "the oldest gives way");
    assert!(store.measured(&key(2), UnixMicros(0)).await.unwrap().is_some());
}

async fn a_claim_and_a_profile_at_the_same_moment_leave_no_claim_behind(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let variant = register(&*store, task, 1, false).await.variants[0].id;
    for round in 0..40 {
        let class = format!("cpu:round:{round}");
        let claim = modelless_store::Measuring {
            variant,
            device_class: class.clone(),
            node: "one".to_owned(),
            until: UnixMicros(1_000),
            progress: "timing".to_owned(),
            failed: None,
            attempts: 0,
        };
        let mut claims = JoinSet::new();
        for _ in 0..3 {
            let (store, claim) = (Arc::clone(&store), claim.clone());
            claims.spawn(async move { store.claim_measuring(claim, UnixMicros(1)).await });
        }
        store.put_profile(variant, profile(&class)).await.unwrap();
        while let Some(claimed) = claims.join_next().await {
            claimed.unwrap().unwrap();
        }
        assert_eq!(store.measurings().await.unwrap(), [], "round {round}");
    }
}
