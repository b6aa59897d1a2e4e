//! What two threads are told by the machine they may do in another order, and one may be put aside at any moment.

use super::*;
use crate::core::Handle as Node;
use modelless_decision::Moments;
use modelless_decision::worker::{Action, BatchId, LaneIx, Reason};
use modelless_drive::Perform;
use modelless_engine::{BatchSlot, Engine as _, EngineError};

/// Far from what the machine counts up to in a test.
const BATCH: BatchId = BatchId(1 << 40);

async fn serving() -> Bed {
    let mut bed = bed(None).await;
    bed.ask(1);
    assert_eq!(bed.wrong_of(1).await, 0);
    let mut status = bed.handle.status();
    let told = status.wait_for(|status| status.replicas.iter().any(|replica| replica.state.serves()));
    tokio::time::timeout(LONG, told).await.expect("in time").expect("still open");
    bed
}

/// All slots that are free on the lane of what is served.
fn take_slots(bed: &Bed) -> Vec<BatchSlot> {
    let variant = served(bed);
    std::iter::from_fn(|| match bed.engine.slot(variant, 0, 1) {
        Ok(slot) => Some(slot),
        Err(EngineError::NoSlot { .. }) => None,
        Err(error) => panic!("{error}"),
    })
    .collect()
}

fn served(bed: &Bed) -> VariantId {
    let replicas = bed.handle.status().borrow().replicas.clone();
    replicas.iter().find(|replica| replica.state.serves()).expect("something is served").variant
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_given_up_before_it_was_prepared_leaves_nothing_behind() {
    let bed = serving().await;
    let handle: &Node = &bed.handle;
    let prepare = || Action::Prepare {
        batch: BATCH,
        device: DeviceIx(0),
        lane: LaneIx(0),
        variant: served(&bed),
        queries: vec![QueryKey(99)],
        reasons: vec![Reason::Only],
        expected: Moments::ZERO,
    };
    handle.perform(Action::Discard { batch: BATCH });
    handle.perform(prepare());
    assert!(handle.batches().is_empty() && handle.given_up().is_empty());
    assert_eq!(take_slots(&bed).len(), 2, "both are free again");
    // In the usual order too.
    handle.perform(prepare());
    assert_eq!((handle.batches().len(), take_slots(&bed).len()), (1, 1));
    handle.perform(Action::Discard { batch: BATCH });
    assert!(handle.batches().is_empty() && handle.given_up().is_empty());
    assert_eq!(take_slots(&bed).len(), 2);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_comes_back_late_is_waited_for_and_nobodys_fault() {
    let mut bed = serving().await;
    let held = take_slots(&bed);
    assert_eq!(held.len(), 2);
    bed.ask(2);
    // Longer than a thread looks before it does something else.
    let early = tokio::time::timeout(Duration::from_millis(50), bed.heard.recv()).await;
    assert!(early.is_err(), "{early:?}");
    drop(held);
    assert_eq!(bed.wrong_of(1).await, 0);
    let replicas = bed.handle.status().borrow().replicas.clone();
    assert!(replicas.iter().all(|replica| replica.state != ReplicaState::Failed), "{replicas:?}");
    bed.end().await;
}
