//! Nodes, replicas and their history.

use super::{missing, store_suite};
use crate::backends::Backend;
use crate::samples::{a_task, change, model, node, walk};
use modelless_store::{Error, Holder, NewNode, NodeState, Replica, Signed, UnixMicros};
use modelless_types::ReplicaState::{Active, Draining, Failed, Inactive, Loading, Overloaded};
use modelless_types::{Bytes, DeviceIx, NodeId, ReplicaId, VariantId};

store_suite!(
    a_node_that_comes_back_keeps_its_number,
    a_node_is_one_process_until_that_no_longer_moves,
    a_replica_needs_a_variant_and_a_node,
    every_transition_is_kept_with_time_cause_and_who,
    a_transition_from_a_state_it_is_not_in_is_refused,
    of_two_transitions_from_one_state_one_happens,
    unprintable_causes_are_kept_in_readable_form,
    old_transitions_can_be_forgotten,
    a_model_that_serves_is_removed_only_by_force,
);

async fn a_node_that_comes_back_keeps_its_number(backend: Backend) {
    let store = backend.open().await;
    let a = store.register_node(node("a"), UnixMicros(10)).await.unwrap();
    let b = store.register_node(node("b"), UnixMicros(11)).await.unwrap();
    assert_ne!(a.id, b.id);
    store.node_seen(a.id, NodeState::Gone, UnixMicros(20)).await.unwrap();
    store.node_seen(a.id, NodeState::Draining, UnixMicros(15)).await.unwrap();
    let known = store.nodes().await.unwrap();
    assert_eq!((known[0].state, known[0].last_seen), (NodeState::Draining, UnixMicros(20)));
    assert_eq!(known[1], b);

    let bigger = NewNode { memory: Bytes::from_mib(9), lanes: 7, ..node("a") };
    let back = store.register_node(bigger.clone(), UnixMicros(30)).await.unwrap();
    assert_eq!((back.id, back.state, back.last_seen), (a.id, NodeState::Up, UnixMicros(30)));
    assert_eq!(back.about, bigger);
    assert_eq!(store.nodes().await.unwrap(), [back, b]);
    missing(store.node_seen(NodeId(99), NodeState::Up, UnixMicros(1)).await);
}

async fn a_node_is_one_process_until_that_no_longer_moves(backend: Backend) {
    let store = backend.open().await;
    let hold = |instance, gone: Option<Holder>| {
        let store = &store;
        async move { store.hold_node("n", instance, &format!("place {instance}"), gone.as_ref()).await.unwrap() }
    };
    let first = hold(1, None).await;
    assert_eq!((first.instance, first.place.as_str()), (1, "place 1"));
    assert_eq!(hold(2, None).await, first, "it is the first one's");
    let again = hold(1, None).await;
    assert!(again.beat > first.beat, "it moves: {again:?}");
    assert_eq!(hold(2, Some(first)).await, again, "it has moved since, so it lives");
    let second = hold(2, Some(again.clone())).await;
    assert_eq!((second.instance, second.place.as_str()), (2, "place 2"));
    assert!(second.beat > again.beat);
    assert_eq!(hold(3, Some(again)).await, second, "that one has gone already");
    assert_eq!(hold(1, None).await.instance, 2, "it hears that it is no longer the node");
    store.release_node("n", 1).await.unwrap();
    assert_eq!(hold(2, None).await.instance, 2, "what one does not hold one cannot release");
    store.release_node("n", 2).await.unwrap();
    assert_eq!(hold(3, None).await.instance, 3);
    assert_eq!(store.hold_node("m", 4, "elsewhere", None).await.unwrap().instance, 4, "names are apart");
    assert!(store.hold_node("m", u64::MAX, "elsewhere", None).await.is_err());
}

async fn a_replica_needs_a_variant_and_a_node(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let v = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants.remove(0);
    let (a, b) = (
        store.register_node(node("a"), UnixMicros(1)).await.unwrap(),
        store.register_node(node("b"), UnixMicros(1)).await.unwrap(),
    );
    missing(store.add_replica(v.id, NodeId(99), DeviceIx(0)).await);
    missing(store.add_replica(VariantId(99), a.id, DeviceIx(0)).await);
    let on_a = store.add_replica(v.id, a.id, DeviceIx(u16::MAX)).await.unwrap();
    let on_b = store.add_replica(v.id, b.id, DeviceIx(0)).await.unwrap();
    assert_eq!(on_a.state, Inactive);
    assert_eq!(store.replicas(None).await.unwrap(), [on_a, on_b]);
    assert_eq!(store.replicas(Some(b.id)).await.unwrap(), [on_b]);

    walk(&*store, &on_a, &[Inactive, Loading], 1).await;
    let error = store.remove_replica(on_a.id).await.unwrap_err();
    assert!(matches!(error, Error::InUse { what: "replica", .. }), "{error}");
    walk(&*store, &on_a, &[Loading, Failed], 2).await;
    store.remove_replica(on_a.id).await.unwrap();
    missing(store.remove_replica(on_a.id).await);
    missing(store.remove_replica(ReplicaId(u64::MAX)).await);
}

async fn every_transition_is_kept_with_time_cause_and_who(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let v = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants.remove(0);
    let node = store.register_node(node("a"), UnixMicros(1)).await.unwrap();
    let one = store.add_replica(v.id, node.id, DeviceIx(0)).await.unwrap();
    let two = store.add_replica(v.id, node.id, DeviceIx(0)).await.unwrap();
    let first =
        store.record_transition(change(&one, Inactive, Loading, 1_700_000_000_000_000)).await.unwrap();
    let second = store.record_transition(change(&two, Inactive, Loading, 3)).await.unwrap();
    let third = store.record_transition(change(&one, Loading, Active, 2)).await.unwrap();

    assert_eq!(first.change, change(&one, Inactive, Loading, 1_700_000_000_000_000));
    assert_eq!((first.variant, first.node), (v.id, node.id));
    assert_eq!(store.transitions(None, 10).await.unwrap(), [third.clone(), second.clone(), first.clone()]);
    assert_eq!(store.transitions(None, 2).await.unwrap(), [third.clone(), second]);
    assert_eq!(store.transitions(Some(one.id), 10).await.unwrap(), [third, first]);
    assert!(store.transitions(Some(ReplicaId(u64::MAX)), 10).await.unwrap().is_empty());
    assert_eq!(
        store.replicas(None).await.unwrap().iter().map(|r| r.state).collect::<Vec<_>>(),
        [Active, Loading]
    );
}

async fn a_transition_from_a_state_it_is_not_in_is_refused(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let v = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants.remove(0);
    let node = store.register_node(node("a"), UnixMicros(1)).await.unwrap();
    let replica = store.add_replica(v.id, node.id, DeviceIx(0)).await.unwrap();
    let error = store.record_transition(change(&replica, Loading, Active, 1)).await.unwrap_err();
    let Error::StateChanged { replica: id, expected, found } = error else { panic!("{error}") };
    assert_eq!((id, expected, found), (replica.id, Loading, Inactive));
    assert!(store.transitions(None, 10).await.unwrap().is_empty());
    let nobody = Replica { id: ReplicaId(99), ..replica };
    missing(store.record_transition(change(&nobody, Inactive, Loading, 1)).await);
}

async fn of_two_transitions_from_one_state_one_happens(backend: Backend) {
    let stores = [backend.open().await, backend.open().await];
    let fashion = a_task(&*stores[0]).await;
    let v = stores[0].register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants.remove(0);
    let node = stores[0].register_node(node("a"), UnixMicros(1)).await.unwrap();
    let replica = stores[0].add_replica(v.id, node.id, DeviceIx(0)).await.unwrap();
    for round in 0..10 {
        for (from, to) in [(Inactive, Failed), (Failed, Inactive)] {
            let [a, b] = &stores;
            let (a, b) = tokio::join!(
                a.record_transition(change(&replica, from, to, round)),
                b.record_transition(change(&replica, from, to, round))
            );
            assert_eq!(usize::from(a.is_ok()) + usize::from(b.is_ok()), 1, "{a:?} {b:?}");
            let lost = a.err().or(b.err());
            assert!(matches!(lost, Some(Error::StateChanged { .. })), "{lost:?}");
        }
    }
    assert_eq!(stores[0].transitions(None, 100).await.unwrap().len(), 20);
}

async fn unprintable_causes_are_kept_in_readable_form(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let v = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants.remove(0);
    let node = store.register_node(node("a"), UnixMicros(1)).await.unwrap();
    let replica = store.add_replica(v.id, node.id, DeviceIx(0)).await.unwrap();
    let mut crash = change(&replica, Inactive, Failed, 1);
    crash.cause = format!("engine said \0 {}", "ü".repeat(5_000));
    store.record_transition(crash).await.unwrap();
    let kept = store.transitions(None, 1).await.unwrap().remove(0).change.cause;
    assert!(kept.starts_with("engine said \u{fffd} ü") && kept.len() <= 2_000, "{} bytes", kept.len());
}

async fn old_transitions_can_be_forgotten(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let v = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants.remove(0);
    let node = store.register_node(node("a"), UnixMicros(1)).await.unwrap();
    let replica = store.add_replica(v.id, node.id, DeviceIx(0)).await.unwrap();
    walk(&*store, &replica, &[Inactive, Loading, Active, Draining], 100).await;
    assert_eq!(store.forget_transitions(UnixMicros(102)).await.unwrap(), 2);
    assert_eq!(
        store.transitions(None, 9).await.unwrap().iter().map(|t| t.change.at.0).collect::<Vec<_>>(),
        [102]
    );
    assert_eq!(store.forget_transitions(UnixMicros(u64::MAX)).await.unwrap(), 1);
    assert_eq!(store.replicas(None).await.unwrap()[0].state, Draining);
}

async fn a_model_that_serves_is_removed_only_by_force(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let m = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap();
    let other = store.register_model(model(fashion.id, "n", &["w"])).await.unwrap();
    let node = store.register_node(node("a"), UnixMicros(1)).await.unwrap();
    let add = async |variant| store.add_replica(variant, node.id, DeviceIx(0)).await.unwrap();
    let (idle, busy) = (add(m.variants[0].id).await, add(m.variants[0].id).await);
    let bystander = add(other.variants[0].id).await;

    let path = [Inactive, Loading, Active, Overloaded];
    for (from, to) in path.into_iter().zip(&path[1..]) {
        store.record_transition(change(&busy, from, *to, 5)).await.unwrap();
        let error = store.remove_model(m.model.id, false, Signed::default()).await.unwrap_err();
        let Error::InUse { what: "model", by, .. } = error else { panic!("{error}") };
        assert!(by.contains(to.name()) && by.contains("\"a\""), "{by}");
    }
    assert_eq!(store.replicas(None).await.unwrap().len(), 3, "nothing was taken away");

    store.remove_model(m.model.id, true, Signed::default()).await.unwrap();
    let catalog = store.catalog().await.unwrap();
    assert_eq!((catalog.models.len(), catalog.variants.len()), (1, 1));
    let left: Vec<ReplicaId> = store.replicas(None).await.unwrap().iter().map(|r| r.id).collect();
    assert_eq!(left, [busy.id, bystander.id], "{} was at rest and went", idle.id);
    // Its owner lets go of it in its own time, and that is recorded too.
    walk(&*store, &busy, &[Overloaded, Draining, Inactive], 9).await;
    store.remove_replica(busy.id).await.unwrap();
    assert_eq!(store.transitions(Some(busy.id), 10).await.unwrap().len(), 5);
    missing(store.add_replica(m.variants[0].id, node.id, DeviceIx(0)).await);

    walk(&*store, &bystander, &[Inactive, Loading, Active, Draining], 9).await;
    store.remove_model(other.model.id, false, Signed::default()).await.unwrap();
}
