//! Plans, secrets, and what outlives a process.

use super::store_suite;
use crate::backends::Backend;
use crate::samples::{a_task, model, node, walk};
use modelless_store::{Error, PLANS_KEPT, PlanId, SavePlan, UnixMicros};
use modelless_types::ReplicaState::{Active, Inactive, Loading};
use modelless_types::{DeviceIx, VariantId};
use std::collections::BTreeSet;

store_suite!(
    a_plan_is_saved_only_on_top_of_the_current_one,
    of_many_schedulers_exactly_one_wins_each_round,
    only_the_latest_plans_are_kept,
    a_secret_is_whatever_was_set_first,
    of_many_candidates_for_a_secret_all_get_the_same,
    a_second_opening_finds_everything,
    a_closed_store_says_so,
);

async fn a_plan_is_saved_only_on_top_of_the_current_one(backend: Backend) {
    let store = backend.open().await;
    let save =
        async |parent, json: &str| store.save_plan(parent, json.to_owned(), UnixMicros(5)).await.unwrap();
    assert_eq!(store.current_plan().await.unwrap(), None);
    assert_eq!(save(Some(PlanId(7)), "{}").await, SavePlan::Lost { current: None });
    let SavePlan::Saved(first) = save(None, r#"{"n": 1}"#).await else { panic!("nobody else is here") };
    assert_eq!(save(None, "{}").await, SavePlan::Lost { current: Some(first) });
    let SavePlan::Saved(second) = save(Some(first), r#"{"n": 2}"#).await else {
        panic!("nobody else is here")
    };
    assert_eq!(save(Some(first), "{}").await, SavePlan::Lost { current: Some(second) });

    let current = store.current_plan().await.unwrap().unwrap();
    assert_eq!((current.id, current.parent, current.json.as_str()), (second, Some(first), r#"{"n": 2}"#));
    assert_eq!(current.at, UnixMicros(5));
    assert_eq!(store.plan(first).await.unwrap().unwrap().json, r#"{"n": 1}"#);
    let latest =
        async |limit| store.plans(limit).await.unwrap().iter().map(|plan| plan.id).collect::<Vec<_>>();
    assert_eq!((latest(9).await, latest(1).await), (vec![second, first], vec![second]));
    assert_eq!(store.plan(PlanId(u64::MAX)).await.unwrap(), None);
}

async fn of_many_schedulers_exactly_one_wins_each_round(backend: Backend) {
    let stores = [backend.open().await, backend.open().await];
    let mut parent = None;
    for round in 0..10 {
        let mut all = tokio::task::JoinSet::new();
        for n in 0..6 {
            let store = stores[n % 2].clone();
            all.spawn(async move {
                store.save_plan(parent, format!("[{round},{n}]"), UnixMicros(1)).await.unwrap()
            });
        }
        let (mut won, mut lost_to) = (Vec::new(), BTreeSet::new());
        for result in all.join_all().await {
            match result {
                SavePlan::Saved(id) => won.push(id),
                SavePlan::Lost { current } => _ = lost_to.insert(current),
            }
        }
        assert_eq!(won.len(), 1, "round {round}");
        assert_eq!(lost_to, BTreeSet::from([Some(won[0])]), "the losers are told who won");
        assert_eq!(stores[1].current_plan().await.unwrap().unwrap().parent, parent);
        parent = Some(won[0]);
    }
}

async fn only_the_latest_plans_are_kept(backend: Backend) {
    let store = backend.open().await;
    let mut parent = None;
    for _ in 0..PLANS_KEPT + 2 {
        match store.save_plan(parent, "{}".to_owned(), UnixMicros(1)).await.unwrap() {
            SavePlan::Saved(id) => parent = Some(id),
            SavePlan::Lost { current } => panic!("lost to {current:?}"),
        }
    }
    let newest = parent.unwrap().0;
    let kept = async |id| store.plan(PlanId(id)).await.unwrap().is_some();
    assert!(kept(newest).await && kept(newest - PLANS_KEPT + 1).await);
    assert!(!kept(newest - PLANS_KEPT).await);
}

async fn a_secret_is_whatever_was_set_first(backend: Backend) {
    let store = backend.open().await;
    let first: [u8; 32] = std::array::from_fn(|i| u8::try_from(i * 8 + 7).unwrap());
    assert_eq!(store.secret("query-ids", first).await.unwrap(), first);
    assert_eq!(store.secret("query-ids", [0; 32]).await.unwrap(), first);
    assert_eq!(store.secret("other", [0; 32]).await.unwrap(), [0; 32]);
    assert!(!format!("{store:?}").contains("070f17"), "Debug shows no key");
}

async fn of_many_candidates_for_a_secret_all_get_the_same(backend: Backend) {
    let stores = [backend.open().await, backend.open().await];
    let mut all = tokio::task::JoinSet::new();
    for n in 0..8_u8 {
        let store = stores[usize::from(n % 2)].clone();
        all.spawn(async move { store.secret("k", [n; 32]).await.unwrap() });
    }
    let got: BTreeSet<[u8; 32]> = all.join_all().await.into_iter().collect();
    assert_eq!(got.len(), 1);
}

async fn a_second_opening_finds_everything(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    store.register_model(model(fashion.id, "m", &["v"])).await.unwrap();
    let node = store.register_node(node("a"), UnixMicros(7)).await.unwrap();
    let replica = store.add_replica(VariantId(1), node.id, DeviceIx(1)).await.unwrap();
    walk(&*store, &replica, &[Inactive, Loading, Active], 10).await;
    let plan = store.save_plan(None, "{}".to_owned(), UnixMicros(11)).await.unwrap();
    assert_eq!(plan, SavePlan::Saved(PlanId(1)));
    let key = store.secret("k", [7; 32]).await.unwrap();

    let again = backend.open().await;
    assert_eq!(again.catalog().await.unwrap(), store.catalog().await.unwrap());
    assert_eq!(again.nodes().await.unwrap(), [node]);
    assert_eq!(again.replicas(None).await.unwrap()[0].state, Active);
    assert_eq!(again.transitions(None, 10).await.unwrap().len(), 2);
    assert_eq!(again.current_plan().await.unwrap(), store.current_plan().await.unwrap());
    assert_eq!(again.secret("k", [9; 32]).await.unwrap(), key);
}

async fn a_closed_store_says_so(backend: Backend) {
    let store = backend.open().await;
    store.close().await;
    let read = store.catalog().await.unwrap_err();
    let write = store.save_plan(None, "{}".to_owned(), UnixMicros(1)).await.unwrap_err();
    for error in [read, write] {
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }
}
