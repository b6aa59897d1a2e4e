//! Queries that are announced: asked for when a batch is bound, and run when they come.

use super::{Bed, LONG, bed, distinct, frame_of};
use modelless_decision::Machine;
use modelless_decision::query::Class;
use modelless_types::{Bytes, Micros, QueryKey, Refusal};
use modelless_wire::{Announcement, Body, Input, NodeLink, ToNode};

fn announce(bed: &Bed, key: u64) {
    let class = Class { task: bed.task, admits: bed.all() };
    let like = frame_of(class, key, LONG, Bytes(8), distinct(key));
    let told = Announcement {
        key: like.key,
        tenant: like.tenant,
        app: like.app,
        class,
        deadline_in: like.deadline_in,
        expires_in: like.expires_in,
        spent: like.spent,
        max_cost: None,
        prefer: like.prefer,
        priority: like.priority,
        best_effort: like.best_effort,
        decoded: like.decoded,
        part_ppm: 500_000,
        quickest: Micros(200),
    };
    bed.handle.send(ToNode::Announce(Box::new(told)));
}

/// One with both variants in memory.
async fn warm() -> Bed {
    let mut bed = bed(None).await;
    bed.ask(0);
    assert_eq!(bed.wrong_of(1).await, 0);
    bed
}

async fn claimed(bed: &mut Bed) -> Vec<QueryKey> {
    match bed.hear().await {
        Body::Claim { queries, lanes } => {
            assert!(lanes > 0);
            queries
        }
        other @ (Body::Answer { .. }
        | Body::Refused { .. }
        | Body::BadInput { .. }
        | Body::HandedBack { .. }
        | Body::Declined { .. }
        | Body::Report) => panic!("no claim: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_announced_is_asked_for_and_answered_when_it_comes() {
    let mut bed = warm().await;
    for key in 1..200 {
        announce(&bed, key);
        assert_eq!(claimed(&mut bed).await, [QueryKey(key)]);
        bed.ask(key);
        assert_eq!(bed.wrong_of(1).await, 0);
    }
    assert!(bed.handle.queries().is_empty());
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_claimed_and_is_taken_back_holds_nobody_up() {
    let mut bed = warm().await;
    announce(&bed, 1);
    assert_eq!(claimed(&mut bed).await, [QueryKey(1)]);
    bed.handle.send(ToNode::Cancel { key: QueryKey(1) });
    bed.ask(2);
    assert_eq!(bed.wrong_of(1).await, 0);
    assert_eq!(bed.handle.core().driver.look(|worker, _| worker.announced_here()), 0);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_claimed_and_cannot_be_used_is_refused_for_that_and_leaves_its_batch() {
    let mut bed = warm().await;
    announce(&bed, 1);
    assert_eq!(claimed(&mut bed).await, [QueryKey(1)]);
    bed.send(1, LONG, bed.all(), Input::Raw(vec![1].into()));
    let heard = bed.hear().await;
    assert!(matches!(heard, Body::BadInput { key: QueryKey(1), .. }), "{heard:?}");
    let waits = bed.handle.core().driver.look(|worker, _| worker.poll_timeout().map(|wake| wake.why));
    assert_ne!(waits, Some("what was claimed does not come"), "its batch does not wait for it");
    bed.ask(2);
    assert_eq!(bed.wrong_of(1).await, 0);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_announced_where_nothing_is_in_memory_or_no_more_is_taken_is_declined() {
    let mut bed = bed(None).await;
    announce(&bed, 1);
    let heard = bed.hear().await;
    let Body::Declined { key: QueryKey(1), why: Refusal::TooLate { .. } } = heard else {
        panic!("it loads nothing for what others may answer: {heard:?}")
    };
    bed.stop.cancel();
    while !bed.handle.draining() {
        tokio::task::yield_now().await;
    }
    announce(&bed, 2);
    let heard = bed.hear().await;
    assert!(matches!(heard, Body::Declined { key: QueryKey(2), .. }), "{heard:?}");
}
