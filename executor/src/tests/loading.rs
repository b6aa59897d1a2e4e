//! What is brought into memory: once, whole, and told how long it took.

use super::{Bed, LONG, Setup, bed, bed_with, config, echo};
use crate::Config;
use modelless_engine::fake::{FakeModel, Fault};
use modelless_store::TaskChange;
use modelless_types::{Batching, KeepFor, LiveRule, Micros, Refusal, ReplicaState, TaskBatching};
use modelless_wire::{Body, NodeLink, NodeStatus, ToNode};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_herd_on_a_cold_model_loads_it_once() {
    let mut bed = bed(None).await;
    let slow = FakeModel { load_time: Duration::from_millis(50), ..echo() };
    let fast = bed.variants[1].clone();
    bed.engine.behave(fast.id, slow);
    for key in 0..300 {
        bed.send(key, LONG, [fast.ordinal].into_iter().collect(), super::distinct(key));
    }
    assert_eq!(bed.wrong_of(300).await, 0);
    let store = bed.end().await;
    let history = store.transitions(None, 1_000).await.expect("a history");
    let loads = history.iter().filter(|t| t.change.to == ReplicaState::Loading).count();
    assert_eq!(loads, 1, "{history:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_loaded_here_yet_is_promised_as_from_the_disk_and_by_its_load_afterwards() {
    let cold = Micros::from_secs(3);
    let mut bed = bed_with(Setup { load_cold: Some(cold), ..Setup::default() }).await;
    let fast = bed.variants[1].clone();
    let only = || [fast.ordinal].into_iter().collect();
    bed.send(1, Duration::from_millis(500), only(), super::distinct(1));
    let Body::Refused { refusal: Refusal::Loading { ready_in, .. }, .. } = bed.hear().await else {
        panic!("it was measured to load in a millisecond from memory only")
    };
    assert!(ready_in > Micros(cold.0 / 2) && ready_in <= cold, "{ready_in}");
    // It is there long before, and what that took is what the next load is promised at, whatever changes of its task.
    bed.send(2, LONG, only(), super::distinct(2));
    assert_eq!(bed.wrong_of(1).await, 0);
    let change = TaskChange { live_accuracy: Some(LiveRule::Floors), ..TaskChange::default() };
    changes_task(&bed, change).await;
    let mut status = bed.handle.status();
    bed.handle.send(ToNode::Unload { variant: fast.id });
    let gone = |status: &NodeStatus| {
        let mut replicas = status.replicas.iter();
        replicas.any(|one| one.variant == fast.id && one.state == ReplicaState::Inactive)
    };
    drop(timeout(LONG, status.wait_for(gone)).await.expect("in time").expect("it runs"));
    bed.send(3, Duration::from_millis(500), only(), super::distinct(3));
    assert_eq!(bed.wrong_of(1).await, 0, "half a second is enough for it");
    drop(status);
    bed.end().await;
}

/// The task is another one, and the node has heard of it.
async fn changes_task(bed: &Bed, change: TaskChange) {
    let version = bed.handle.catalogue().version;
    bed.store.change_task(bed.task, change).await.expect("a task");
    bed.handle.catalog_changed();
    timeout(LONG, async {
        while bed.handle.catalogue().version == version {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it reads the catalogue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_loaded_serves_on_when_its_task_is_asked_with_other_rules() {
    let mut bed = bed(None).await;
    bed.ask(1);
    assert_eq!(bed.wrong_of(1).await, 0);
    let change = TaskChange { live_accuracy: Some(LiveRule::Floors), ..TaskChange::default() };
    changes_task(&bed, change).await;
    bed.ask(2);
    assert_eq!(bed.wrong_of(1).await, 0);
    let store = bed.end().await;
    let history = store.transitions(None, 1_000).await.expect("a history");
    let loads = history.iter().filter(|t| t.change.to == ReplicaState::Loading);
    let mut loaded: Vec<_> = loads.map(|t| t.variant).collect();
    let all = loaded.len();
    loaded.dedup();
    assert_eq!(loaded.len(), all, "nothing was loaded again: {history:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_made_as_a_task_says_that_was_changed_while_it_is_served() {
    let mut bed = bed(None).await;
    let together = |batching| TaskChange { batching: Some(batching), ..TaskChange::default() };
    let fixed = Batching::Fixed { size: 4, wait: Micros::from_secs(1) };
    let mut key = 0;
    for (batching, size) in
        [(TaskBatching::Own(fixed), 4), (TaskBatching::Own(Batching::Off), 1), (TaskBatching::Own(fixed), 4)]
    {
        changes_task(&bed, together(batching)).await;
        let mut sizes = Vec::new();
        // The first four may come before the machine has heard what the catalogue says.
        for _ in 0..2 {
            (1..=4).for_each(|more| bed.ask(key + more));
            key += 4;
            sizes.clear();
            for _ in 0..4 {
                let Body::Answer { answer, .. } = bed.hear().await else { panic!("not answered") };
                sizes.push(answer.batch);
            }
        }
        assert_eq!(sizes, [size; 4], "{batching}");
    }
    changes_task(&bed, together(TaskBatching::AsNode)).await;
    bed.ask(key + 1);
    assert_eq!(bed.wrong_of(1).await, 0);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_being_loaded_while_its_task_changes_serves_once_it_is_there() {
    let mut bed = bed(None).await;
    let fast = bed.variants[1].clone();
    bed.engine.behave(fast.id, FakeModel { load_time: Duration::from_secs(1), ..echo() });
    bed.send(1, LONG, [fast.ordinal].into_iter().collect(), super::distinct(1));
    let mut status = bed.handle.status();
    let loading = |status: &NodeStatus| {
        status.replicas.iter().any(|one| one.variant == fast.id && one.state == ReplicaState::Loading)
    };
    timeout(LONG, status.wait_for(loading)).await.expect("in time").expect("it runs");
    let change = TaskChange { keep: Some(KeepFor::seconds(5).expect("a time")), ..TaskChange::default() };
    changes_task(&bed, change).await;
    assert!(loading(&status.borrow_and_update()), "the load is still under way, or this shows nothing");
    assert_eq!(bed.wrong_of(1).await, 0);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_batches_leave_behind_counts_once_the_node_holds_more_than_it_may() {
    let mut bed = bed(None).await;
    let budget = bed.handle.config().memory;
    let fast = bed.variants[1].clone();
    bed.engine.behave(fast.id, FakeModel { keeps: budget, ..echo() });
    let only = || [fast.ordinal].into_iter().collect();
    bed.send(1, LONG, only(), super::distinct(1));
    assert_eq!(bed.wrong_of(1).await, 0);
    let mut status = bed.handle.status();
    let gone = |status: &NodeStatus| {
        let mut replicas = status.replicas.iter();
        replicas.any(|one| one.variant == fast.id && one.state == ReplicaState::Inactive)
    };
    timeout(LONG, status.wait_for(gone)).await.expect("in time").expect("it runs");
    // A load takes what it took before, or it could never come back.
    bed.engine.behave(fast.id, echo());
    bed.send(2, LONG, only(), super::distinct(2));
    assert_eq!(bed.wrong_of(1).await, 0);
    drop(status);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_artefact_that_is_not_what_it_was_is_never_served() {
    let mut bed = bed_with(Setup { damaged: true, ..Setup::default() }).await;
    for key in 0..20 {
        bed.send(key, Duration::from_secs(2), bed.all(), super::distinct(key));
    }
    for _ in 0..20 {
        match bed.hear().await {
            Body::Refused { refusal: Refusal::VariantFailed { why }, .. } => {
                assert!(
                    why.contains("sha256") || why.contains("damaged") || why.contains("corrupt"),
                    "{why}"
                );
            }
            Body::Refused { refusal: Refusal::Loading { .. } | Refusal::TooLate { .. }, .. } => {}
            other @ (Body::Answer { .. }
            | Body::Refused { .. }
            | Body::BadInput { .. }
            | Body::HandedBack { .. }
            | Body::Declined { .. }
            | Body::Claim { .. }
            | Body::Report) => panic!("{other:?}"),
        }
    }
    for variant in &bed.variants {
        let unload = modelless_engine::Engine::unload(&*bed.engine, variant.id).await;
        assert!(unload.is_err(), "it stayed in memory");
    }
    let store = bed.end().await;
    let history = store.transitions(None, 1_000).await.expect("a history");
    assert!(history.iter().any(|t| t.change.to == ReplicaState::Failed), "{history:?}");
    assert!(!history.iter().any(|t| t.change.to == ReplicaState::Active), "{history:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_tells_loads_batches_and_crashes() {
    let mut bed = bed(None).await;
    let mut status = bed.handle.status();
    bed.ask(1);
    assert_eq!(bed.wrong_of(1).await, 0);
    let told = |wanted: fn(&NodeStatus) -> bool| {
        let mut status = status.clone();
        async move { timeout(LONG, status.wait_for(wanted)).await.expect("in time").expect("it runs").clone() }
    };
    let now = told(|status| {
        status.load.batches == 1
            && status.load.running == 0
            && status.replicas.iter().any(|r| r.loads.count == 1)
    })
    .await;
    assert_eq!((now.load.queries, now.load.running, now.load.queued), (1, 0, 0));
    let replica = now.replicas.iter().find(|replica| replica.loads.count == 1).expect("one was loaded");
    assert!(replica.loads.warm.is_some_and(|took| took > Micros::ZERO), "{replica:?}");
    let loaded = replica.variant;

    bed.engine.kill(bed.variants[0].model, "made to");
    told(|status| status.load.crashes == 1).await;
    bed.ask(2);
    assert_eq!(bed.wrong_of(1).await, 0);
    let wake = bed.variants.iter().find(|variant| variant.id == loaded).expect("it is registered");
    bed.handle.send(ToNode::Wake { task: bed.task, ordinal: wake.ordinal });
    told(|status| status.load.restarts >= 1).await;
    status.borrow_and_update();
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unloaded_by_hand_leaves_memory_and_its_next_query_brings_it_back() {
    let mut bed = bed(None).await;
    let mut status = bed.handle.status();
    let known = bed.variants[0].clone();
    let only = || [known.ordinal].into_iter().collect();
    bed.send(1, LONG, only(), super::distinct(1));
    assert_eq!(bed.wrong_of(1).await, 0);
    bed.handle.send(ToNode::Unload { variant: known.id });
    let state = |status: &NodeStatus| {
        status.replicas.iter().find(|replica| replica.variant == known.id).map(|replica| replica.state)
    };
    let left = status.wait_for(|status| state(status) == Some(ReplicaState::Inactive));
    timeout(LONG, left).await.expect("in time").expect("it runs");
    let unload = modelless_engine::Engine::unload(&*bed.engine, known.id).await;
    assert!(unload.is_err(), "the engine had let it go");
    bed.send(2, LONG, only(), super::distinct(2));
    assert_eq!(bed.wrong_of(1).await, 0);
    assert_eq!(status.borrow_and_update().load.evictions, 0, "it made room for nothing");
    drop(status);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_unloaded_yet_is_unloaded_when_it_can() {
    use modelless_engine::{Engine as _, EngineError};
    let mut bed = bed(None).await;
    let mut status = bed.handle.status();
    let known = bed.variants[0].clone();
    bed.send(1, LONG, [known.ordinal].into_iter().collect(), super::distinct(1));
    assert_eq!(bed.wrong_of(1).await, 0);
    // Something of which the node knows nothing keeps the model in use for a while.
    bed.engine.behave(known.id, FakeModel { latency: Arc::new(|_| Duration::from_secs(1)), ..echo() });
    let slot = bed.engine.slot(known.id, 0, 1).expect("it is loaded");
    bed.engine.submit(slot, LONG, Box::new(drop));
    bed.handle.send(ToNode::Unload { variant: known.id });
    let state = |status: &NodeStatus| {
        status.replicas.iter().find(|replica| replica.variant == known.id).map(|replica| replica.state)
    };
    let left = status.wait_for(|status| state(status) == Some(ReplicaState::Inactive));
    timeout(LONG, left).await.expect("in time").expect("it runs");
    let again = bed.engine.unload(known.id).await;
    assert!(
        matches!(again, Err(EngineError::NotLoaded(_))),
        "{again:?}: told as unloaded while it was there"
    );
    drop(status);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variant_has_run_before_a_query_is_given_to_it() {
    let batches = Arc::new(AtomicU64::new(0));
    let config = Config { warm_up: Micros(100), lanes: 2, ..config() };
    let mut bed = bed_with(Setup { config, ..Setup::default() }).await;
    let (slow, fast) = (bed.variants[0].clone(), bed.variants[1].clone());
    for variant in [&slow, &fast] {
        let counted = Arc::clone(&batches);
        let count = move |number: u64, _| {
            counted.fetch_max(number + 1, Ordering::SeqCst);
            None
        };
        bed.engine.behave(variant.id, FakeModel { faults: Arc::new(count), ..echo() });
    }
    // By their profiles one takes 200 us and the other 50.
    bed.send(1, LONG, [slow.ordinal].into_iter().collect(), super::distinct(1));
    assert_eq!(bed.wrong_of(1).await, 0);
    assert_eq!(batches.swap(0, Ordering::SeqCst), 1, "a slow one is not made slower to load");
    bed.engine.kill(slow.model, "nothing of the model is to be in memory");
    bed.send(2, LONG, [fast.ordinal].into_iter().collect(), super::distinct(2));
    assert_eq!(bed.wrong_of(1).await, 0);
    assert_eq!(batches.load(Ordering::SeqCst), 5, "two on each lane, and the query");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_its_process_on_an_empty_input_is_no_replica() {
    let config = Config { warm_up: Micros(100), ..config() };
    let mut bed = bed_with(Setup { config, ..Setup::default() }).await;
    let fast = bed.variants[1].clone();
    let crash = |_, _| Some(Fault::Crash("made to".into()));
    bed.engine.behave(fast.id, FakeModel { faults: Arc::new(crash), ..echo() });
    bed.send(1, LONG, [fast.ordinal].into_iter().collect(), super::distinct(1));
    let Body::Refused { refusal: Refusal::VariantFailed { why }, .. } = bed.hear().await else {
        panic!("not refused by name")
    };
    assert!(why.contains("empty input") && why.contains("made to"), "{why}");
    bed.end().await;
}

/// Writes something else into an artefact, as a failing disk would.
pub(super) fn damage(path: &std::path::Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    fs::write(path, b"something else").expect("it is ours");
}
