//! What was asked earlier: the greatest stands whoever says it and how often, and no more is kept than is compared by.

use super::{refused, store_suite};
use crate::backends::Backend;
use modelless_store::{BINS_A_SLOT, RANGES_AT_ONCE, SLOTS_KEPT, SlotSeen, Store};
use modelless_types::{Bin, Slot, TaskId};
use std::sync::Arc;
use tokio::task::JoinSet;

store_suite! {
    what_was_seen_is_read_by_slots_and_by_task,
    the_greatest_stands_however_often_and_by_however_many_it_is_said,
    the_oldest_slots_go_and_a_clock_that_was_wrong_takes_none_away,
    a_slot_tells_of_those_that_were_asked_most,
    what_cannot_have_been_seen_is_refused,
}

const SLOT: u32 = 5_900_000;

fn seen(slot: u32, seen_s: u16, bins: &[(u32, u64, u64)]) -> SlotSeen {
    let bin = |&(task, peak_per_1000_s, queries): &(u32, u64, u64)| {
        (TaskId(task), Bin { peak_per_1000_s, queries })
    };
    SlotSeen { slot: Slot(slot), seen_s, bins: bins.iter().map(bin).collect() }
}

async fn all(store: &dyn Store) -> Vec<SlotSeen> {
    store.history().slots(&[Slot(0)..Slot(u32::MAX)], None).await.unwrap()
}

async fn what_was_seen_is_read_by_slots_and_by_task(backend: Backend) {
    let store = backend.open().await;
    let history = store.history();
    assert_eq!(all(&*store).await, []);
    let most = i64::MAX.unsigned_abs();
    let told = [
        seen(SLOT, 300, &[(1, 40_000, 900), (2, 1, most)]),
        seen(SLOT + 1, 12, &[]),
        seen(SLOT + 9, 300, &[(1, 7, 5)]),
    ];
    for one in &told {
        history.put_slot(one.clone()).await.unwrap();
    }
    assert_eq!(all(&*store).await, told, "a slot in which nothing was asked is there all the same");
    let ranges = [Slot(SLOT + 9)..Slot(SLOT + 10), Slot(SLOT - 5)..Slot(SLOT + 1)];
    let some = history.slots(&ranges, None).await.unwrap();
    assert_eq!(some, [told[0].clone(), told[2].clone()], "in the order of slots");
    let of_one = history.slots(&[Slot(SLOT)..Slot(SLOT + 9)], Some(TaskId(2))).await.unwrap();
    assert_eq!(of_one, [seen(SLOT, 300, &[(2, 1, most)]), seen(SLOT + 1, 12, &[])]);
    assert_eq!(history.slots(&[], None).await.unwrap(), []);
}

async fn the_greatest_stands_however_often_and_by_however_many_it_is_said(backend: Backend) {
    let store = backend.open().await;
    let mut writers = JoinSet::new();
    for n in 0..8_u64 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            for _ in 0..3 {
                // One saw the most at once, another one the most in all.
                let said = seen(SLOT, u16::try_from(n * 10).unwrap(), &[(1, 100 - n, n), (2, n, 1)]);
                store.history().put_slot(said).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    assert_eq!(all(&*store).await, [seen(SLOT, 70, &[(1, 100, 7), (2, 7, 1)])]);
}

/// Two weeks and a day are looked at.
const _: () = assert!(SLOTS_KEPT >= 15 * Slot::A_DAY);

async fn the_oldest_slots_go_and_a_clock_that_was_wrong_takes_none_away(backend: Backend) {
    let store = backend.open().await;
    let history = store.history();
    history.put_slot(seen(SLOT + 1_000_000, 300, &[(1, 1, 1)])).await.unwrap(); // years ahead
    for slot in 0..SLOTS_KEPT {
        let bins: &[_] = if slot < 2 { &[(1, 1, 1)] } else { &[] };
        history.put_slot(seen(SLOT + slot, 300, bins)).await.unwrap();
    }
    let kept = all(&*store).await;
    assert_eq!((kept.len(), kept[0].slot, kept[0].bins.len()), (SLOTS_KEPT as usize, Slot(SLOT + 1), 1));
    history.put_slot(seen(SLOT, 300, &[(1, 1, 1)])).await.unwrap();
    assert_eq!(all(&*store).await, kept, "nor does what is too old come back");
}

async fn a_slot_tells_of_those_that_were_asked_most(backend: Backend) {
    let store = backend.open().await;
    let most = u32::try_from(BINS_A_SLOT).unwrap();
    let many: Vec<_> = (1..=most).map(|task| (task, 9, u64::from(task))).collect();
    store.history().put_slot(seen(SLOT, 9, &many)).await.unwrap();
    store.history().put_slot(seen(SLOT, 9, &[(9_001, 1, 1_000), (9_002, 1_000, 1)])).await.unwrap();
    let bins = all(&*store).await.remove(0).bins;
    assert_eq!(bins.len(), BINS_A_SLOT);
    let there = [1, 2, 9_001, 9_002].map(|task| bins.contains_key(&TaskId(task)));
    assert_eq!(there, [false, true, true, false], "of those that were asked as much the first");
}

async fn what_cannot_have_been_seen_is_refused(backend: Backend) {
    let store = backend.open().await;
    let history = store.history();
    refused(history.put_slot(seen(SLOT, 301, &[])).await);
    refused(history.put_slot(seen(SLOT, 1, &[(1, u64::MAX, 1)])).await);
    refused(history.put_slot(seen(SLOT, 1, &[(1, 1, u64::MAX)])).await);
    let many: Vec<_> = (0..=u32::try_from(BINS_A_SLOT).unwrap()).map(|task| (task, 1, 1)).collect();
    refused(history.put_slot(seen(SLOT, 1, &many)).await);
    let ranges = vec![Slot(1)..Slot(2); RANGES_AT_ONCE + 1];
    refused(history.slots(&ranges, None).await);
    assert_eq!(all(&*store).await, []);
}
