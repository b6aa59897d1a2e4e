//! What happened, in one order.

use super::store_suite;
use crate::backends::Backend;
use crate::samples::{a_task, change, model, node};
use modelless_store::{EventKind, NewEvent, NodeState, UnixMicros};
use modelless_types::DeviceIx;
use modelless_types::ReplicaState::{Inactive, Loading};

store_suite!(
    what_happens_to_nodes_and_replicas_is_told_in_one_order,
    who_follows_misses_nothing_and_hears_nothing_twice,
);

fn planned(n: u64) -> NewEvent {
    NewEvent {
        kind: EventKind::Plan,
        node: None,
        variant: None,
        task: None,
        what: format!("plan {n}"),
        cause: "a\0b".into(),
        who: "scheduler s".into(),
        at: UnixMicros(n),
    }
}

async fn what_happens_to_nodes_and_replicas_is_told_in_one_order(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let v = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants.remove(0);
    let a = store.register_node(node("a"), UnixMicros(1)).await.unwrap();
    let replica = store.add_replica(v.id, a.id, DeviceIx(0)).await.unwrap();
    store.record_transition(change(&replica, Inactive, Loading, 2)).await.unwrap();
    let noted = store.note_event(planned(3)).await.unwrap();
    assert_eq!(noted.about.cause, "a\u{fffd}b");
    for state in [NodeState::Up, NodeState::Draining, NodeState::Draining, NodeState::Gone] {
        store.node_seen(a.id, state, UnixMicros(4)).await.unwrap();
    }
    let told = store.events(None, 100).await.unwrap();
    let of = |n: usize| {
        (told[n].about.kind, told[n].about.what.as_str(), told[n].about.node, told[n].about.variant)
    };
    assert_eq!(of(0), (EventKind::Node, "up", Some(a.id), None));
    assert_eq!(of(1), (EventKind::Replica, "loading", Some(a.id), Some(v.id)));
    assert!(told[1].about.cause.contains("was inactive"), "{:?}", told[1]);
    assert_eq!(told[2], noted);
    assert_eq!(
        (of(3).1, of(4).1, told.len()),
        ("draining", "gone", 5),
        "what did not change is not told: {told:?}"
    );
    assert!(told.is_sorted_by(|a, b| a.seq < b.seq));
}

async fn who_follows_misses_nothing_and_hears_nothing_twice(backend: Backend) {
    let store = backend.open().await;
    for n in 1..=5 {
        store.note_event(planned(n)).await.unwrap();
    }
    let mut heard = Vec::new();
    let mut last = None;
    loop {
        let more = store.events(Some(last.unwrap_or(0)), 2).await.unwrap();
        let Some(newest) = more.last() else { break };
        last = Some(newest.seq);
        heard.extend(more.into_iter().map(|event| event.about.at.0));
    }
    assert_eq!(heard, [1, 2, 3, 4, 5]);
    let latest = store.events(None, 2).await.unwrap();
    assert_eq!(latest.iter().map(|event| event.about.at.0).collect::<Vec<_>>(), [4, 5]);
    assert!(store.events(Some(u64::MAX), 9).await.unwrap().is_empty());
}
