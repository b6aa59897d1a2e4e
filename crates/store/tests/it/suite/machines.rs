//! Machines that are rented.

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::{a_task, model, node, walk};
use modelless_store::{
    Error, EventKind, MACHINES_KEPT, Machine, MachineStep, NewMachine, Node, NodeState, PoolStands, Signed,
    Store, UnixMicros,
};
use modelless_types::MachineState::{self, Asked, Draining, Failed, Gone, Joined, Starting, Stopping};
use modelless_types::{DeviceIx, MachineId, PricePerHour, ReplicaState};
use std::sync::Arc;

store_suite!(
    a_machine_is_written_down_and_followed_to_its_end,
    of_two_who_move_a_machine_one_does,
    there_are_never_more_machines_than_may_be_however_many_ask,
    the_budget_counts_machines_of_all_pools,
    one_that_was_found_keeps_its_name_and_is_found_once,
    numbers_may_start_again_from_an_older_one_and_names_never_do,
    what_becomes_of_a_machine_is_told_as_events,
    with_a_machine_goes_what_it_had_in_memory_and_in_time_its_node,
    a_dearer_pool_counts_as_such_with_the_machines_it_has,
    ended_machines_are_forgotten_in_time_and_others_are_not,
    pools_stand_as_was_said_last,
);

fn by(at: u64) -> Signed {
    Signed { who: "planner".to_owned(), at: UnixMicros(at) }
}

fn new(pool: &str, most: u32) -> NewMachine {
    let why = "wanted".to_owned();
    NewMachine {
        pool: pool.to_owned(),
        found: None,
        price: PricePerHour(100),
        most,
        budget: None,
        why,
        by: by(5),
    }
}

async fn moved(
    store: &dyn Store,
    machine: &Machine,
    from: MachineState,
    to: MachineState,
    at: u64,
) -> modelless_store::Result<Machine> {
    let instance = (to == Starting).then(|| "i-1".to_owned());
    let step =
        MachineStep { machine: machine.id, from, to, instance, why: format!("now {to:?}"), by: by(at) };
    store.rented().move_machine(step).await
}

async fn a_machine_is_written_down_and_followed_to_its_end(backend: Backend) {
    let store = backend.open().await;
    let first = store.rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
    assert_eq!((first.name.as_str(), first.state, first.instance.as_deref()), ("cpu-1", Asked, None));
    assert_eq!((first.asked, first.since, first.joined), (UnixMicros(5), UnixMicros(5), None));
    let path = [Asked, Starting, Joined, Draining, Stopping, Gone];
    for (at, step) in path.windows(2).enumerate() {
        let now = moved(&*store, &first, step[0], step[1], 10 + at as u64).await.unwrap();
        assert_eq!((now.state, now.since.0), (step[1], 10 + at as u64));
        let known = store.rented().machine_named("cpu-1").await.unwrap();
        assert_eq!(known.as_ref(), Some(&now));
        let open = store.rented().machines().await.unwrap();
        assert_eq!(open.len(), usize::from(step[1] != Gone));
    }
    let again = backend.open().await;
    let ended = again.rented().ended_machines(9).await.unwrap();
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].joined, ended[0].instance.as_deref()), (Some(UnixMicros(11)), Some("i-1")));
    let changes = again.rented().machine_changes(Some(first.id), 99).await.unwrap();
    let states: Vec<_> = changes.iter().rev().map(|change| (change.from, change.to)).collect();
    assert_eq!(states[0], (None, Asked));
    assert_eq!(states[1..], path.windows(2).map(|step| (Some(step[0]), step[1])).collect::<Vec<_>>());
    let last = &changes[0];
    assert_eq!((last.why.as_str(), last.who.as_str(), last.at.0), ("now Gone", "planner", 14));
    assert_eq!(again.rented().machine_changes(None, 2).await.unwrap(), changes[..2]);
}

async fn of_two_who_move_a_machine_one_does(backend: Backend) {
    let stores = [backend.open().await, backend.open().await];
    let machine = stores[0].rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
    let (a, b) = tokio::join!(
        moved(&*stores[0], &machine, Asked, Starting, 6),
        moved(&*stores[1], &machine, Asked, Failed, 6)
    );
    assert_eq!(usize::from(a.is_ok()) + usize::from(b.is_ok()), 1, "{a:?} {b:?}");
    let lost = a.err().or(b.err()).unwrap();
    assert!(matches!(lost, Error::MachineMoved { expected: Asked, .. }), "{lost}");
    let ended = stores[0].rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
    moved(&*stores[0], &ended, Asked, Gone, 7).await.unwrap();
    assert!(moved(&*stores[0], &ended, Gone, Starting, 8).await.is_err(), "an end is one");
    let nobody = Machine { id: MachineId(99), ..machine };
    missing(moved(&*stores[0], &nobody, Asked, Starting, 9).await);
}

async fn there_are_never_more_machines_than_may_be_however_many_ask(backend: Backend) {
    let stores = [backend.open().await, backend.open().await];
    let mut all = tokio::task::JoinSet::new();
    for n in 0..12 {
        let store = Arc::clone(&stores[n % 2]);
        all.spawn(async move { store.rented().add_machine(new("cpu", 5)).await.unwrap() });
    }
    assert_eq!(all.join_all().await.into_iter().flatten().count(), 5);
    let machines = stores[0].rented().machines().await.unwrap();
    assert_eq!(machines.len(), 5);
    assert!(stores[1].rented().add_machine(new("gpu", 1)).await.unwrap().is_some(), "another pool");
    moved(&*stores[0], &machines[0], Asked, Failed, 6).await.unwrap();
    assert!(stores[1].rented().add_machine(new("cpu", 5)).await.unwrap().is_some(), "one has ended");
    refused(stores[0].rented().add_machine(new("", 5)).await);
}

async fn the_budget_counts_machines_of_all_pools(backend: Backend) {
    let store = backend.open().await;
    let within = |pool, budget| NewMachine { budget: Some(PricePerHour(budget)), ..new(pool, 9) };
    assert!(store.rented().add_machine(within("a", 250)).await.unwrap().is_some());
    assert!(store.rented().add_machine(within("b", 250)).await.unwrap().is_some());
    assert!(store.rented().add_machine(within("b", 250)).await.unwrap().is_none());
    assert!(store.rented().add_machine(within("a", 300)).await.unwrap().is_some());
}

async fn one_that_was_found_keeps_its_name_and_is_found_once(backend: Backend) {
    let store = backend.open().await;
    let found = NewMachine { found: Some(("cpu-77".to_owned(), "i-7".to_owned())), ..new("cpu", 9) };
    let machine = store.rented().add_machine(found.clone()).await.unwrap().unwrap();
    assert_eq!((machine.name.as_str(), machine.state), ("cpu-77", Starting));
    assert_eq!(machine.instance.as_deref(), Some("i-7"));
    assert!(store.rented().add_machine(found.clone()).await.unwrap().is_none(), "it is written down");
    moved(&*store, &machine, Starting, Failed, 6).await.unwrap();
    assert!(store.rented().add_machine(found).await.unwrap().is_none(), "it has ended, and stays so");
}

async fn numbers_may_start_again_from_an_older_one_and_names_never_do(backend: Backend) {
    let store = backend.open().await;
    let found = |name: &str| NewMachine { found: Some((name.to_owned(), "i-7".to_owned())), ..new("cpu", 9) };
    let adopted = store.rented().add_machine(found("cpu-1")).await.unwrap().unwrap();
    assert!(adopted.was_found() && adopted.id == MachineId(2), "its number is not that of its name");
    store.rented().add_machine(found("cpu-4")).await.unwrap().unwrap();
    let fresh = store.rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
    assert_eq!((fresh.name.as_str(), fresh.id, fresh.was_found()), ("cpu-5", MachineId(5), false));
    assert!(store.rented().add_machine(found("cpu-4")).await.unwrap().is_none());
    assert!(store.rented().add_machine(new("cpu", 9)).await.unwrap().is_some());
}

async fn what_becomes_of_a_machine_is_told_as_events(backend: Backend) {
    let store = backend.open().await;
    let machine = store.rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
    moved(&*store, &machine, Asked, Starting, 6).await.unwrap();
    let told = store.events(None, 9).await.unwrap();
    let told: Vec<_> =
        told.iter().map(|event| (event.about.kind, &*event.about.what, &*event.about.cause)).collect();
    let of = |what, cause| (EventKind::Machine, what, cause);
    assert_eq!(told, [of("asked", "cpu-1: wanted"), of("starting", "cpu-1: now Starting (was asked)")]);
}

async fn node_named(store: &dyn Store, name: &str) -> Option<Node> {
    store.nodes().await.unwrap().into_iter().find(|node| node.about.name == name)
}

async fn with_a_machine_goes_what_it_had_in_memory_and_in_time_its_node(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await;
    let variant = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants[0].id;
    let machine = store.rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
    let here = store.register_node(node(&machine.name), UnixMicros(7)).await.unwrap();
    let other = store.register_node(node("cpu-0"), UnixMicros(7)).await.unwrap();
    store.hold_node(&machine.name, 5, "here", None).await.unwrap();
    let replica = store.add_replica(variant, here.id, DeviceIx(0)).await.unwrap();
    let kept = store.add_replica(variant, other.id, DeviceIx(0)).await.unwrap();
    walk(&*store, &replica, &[ReplicaState::Inactive, ReplicaState::Loading, ReplicaState::Active], 8).await;
    walk(&*store, &kept, &[ReplicaState::Inactive, ReplicaState::Loading], 8).await;
    moved(&*store, &machine, Asked, Failed, 9).await.unwrap();
    let after = store.replicas(None).await.unwrap();
    assert_eq!(
        after.iter().map(|of| of.state).collect::<Vec<_>>(),
        [ReplicaState::Failed, ReplicaState::Loading]
    );
    let last = store.transitions(Some(replica.id), 1).await.unwrap();
    assert_eq!(last[0].change.cause, "its machine ended: now Failed");
    assert_eq!(node_named(&*store, &machine.name).await.unwrap().state, NodeState::Gone);
    let held = store.hold_node(&machine.name, 6, "there", None).await.unwrap();
    assert_eq!(held.instance, 6, "nobody holds it any more");
    for _ in 0..MACHINES_KEPT {
        let machine = store.rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
        moved(&*store, &machine, Asked, Failed, 10).await.unwrap();
    }
    assert_eq!(node_named(&*store, &machine.name).await, None);
    assert_eq!(store.replicas(None).await.unwrap(), after[1..]);
    assert!(node_named(&*store, "cpu-0").await.is_some(), "nobody rented that");
}

async fn a_dearer_pool_counts_as_such_with_the_machines_it_has(backend: Backend) {
    let store = backend.open().await;
    let within = |budget| NewMachine { budget: Some(PricePerHour(budget)), ..new("a", 9) };
    let first = store.rented().add_machine(within(200)).await.unwrap().unwrap();
    store.rented().add_machine(new("b", 9)).await.unwrap().unwrap();
    store.rented().price_machines("a", PricePerHour(101)).await.unwrap();
    let prices = |all: Vec<Machine>| all.iter().map(|machine| machine.price.0).collect::<Vec<_>>();
    assert_eq!(prices(store.rented().machines().await.unwrap()), [101, 100]);
    assert!(store.rented().add_machine(within(300)).await.unwrap().is_none());
    moved(&*store, &first, Asked, Failed, 6).await.unwrap();
    store.rented().price_machines("a", PricePerHour(500)).await.unwrap();
    assert_eq!(prices(store.rented().ended_machines(9).await.unwrap()), [101], "it cost what it cost");
}

async fn ended_machines_are_forgotten_in_time_and_others_are_not(backend: Backend) {
    let store = backend.open().await;
    let stays = store.rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
    for _ in 0..=MACHINES_KEPT {
        let machine = store.rented().add_machine(new("cpu", 9)).await.unwrap().unwrap();
        moved(&*store, &machine, Asked, Failed, 6).await.unwrap();
    }
    assert!(store.rented().add_machine(new("cpu", 9)).await.unwrap().is_some());
    assert!(store.rented().machine_named("cpu-2").await.unwrap().is_none());
    assert!(store.rented().machine_named("cpu-4").await.unwrap().is_some());
    assert_eq!(store.rented().machines().await.unwrap()[0], stays);
    assert_eq!(store.rented().ended_machines(3).await.unwrap().len(), 3);
}

async fn pools_stand_as_was_said_last(backend: Backend) {
    let store = backend.open().await;
    let pool =
        |name: &str, json: &str| PoolStands { name: name.into(), json: json.into(), at: UnixMicros(3) };
    store.rented().put_pools(vec![pool("b", "{}"), pool("a", r#"{"n": 1}"#)]).await.unwrap();
    assert_eq!(store.rented().pools().await.unwrap(), [pool("a", r#"{"n": 1}"#), pool("b", "{}")]);
    store.rented().put_pools(vec![pool("c", "[]")]).await.unwrap();
    assert_eq!(store.rented().pools().await.unwrap(), [pool("c", "[]")]);
    refused(store.rented().put_pools(vec![pool("c", "no JSON")]).await);
}
