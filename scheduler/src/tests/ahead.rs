//! What is asked is written down for later days, and what earlier days tell is made ready for.

use super::*;
use modelless_store::{SlotSeen, TaskChange};
use modelless_types::{Ahead, Bin, KeepFor, Slot, TaskId};

const TASK: TaskId = TaskId(1);
/// Some day, half an hour before nine o'clock in UTC.
const BEGAN: Slot = Slot(20_000 * Slot::A_DAY + 8 * 12 + 6);
const NINE: Slot = Slot(BEGAN.0 + 6);

/// A clock on the wall that goes with tokio's, and is so much off.
fn wall(began: Instant, off: Duration) -> impl Fn() -> UnixMicros + Send + Sync {
    move || UnixMicros(BEGAN.starts().0 + u64::try_from((began.elapsed() + off).as_micros()).unwrap())
}

async fn asked_at_nine_on(store: &dyn Store, days: &[u32]) {
    for day in days {
        let bin = Bin { peak_per_1000_s: 40_000, queries: 9_000 };
        let slot = NINE.days_before(*day).unwrap();
        let seen = SlotSeen { slot, seen_s: 300, bins: [(TASK, bin)].into() };
        store.history().put_slot(seen).await.unwrap();
    }
}

/// Two schedulers plan in turn for an hour while nobody asks; what was told of the task, with when, in seconds before or after nine.
async fn an_hour(store: &Arc<dyn Store>, variants: &[Variant]) -> Vec<(i64, String, String)> {
    let (_keep, status) = node(variants);
    let began = Instant::now();
    let start = |off_ms| {
        let (service, handle) = scheduler(store, &status);
        (service.by_clock(wall(began, Duration::from_millis(off_ms))), handle)
    };
    let mut both = [start(0), start(1_900)];
    let mut told = Vec::new();
    for second in 0..3_600_u64 {
        let (service, handle) = &mut both[usize::try_from(second % 2).unwrap()];
        handle.set_members(vec![told_by_gateway(40_000 + second, None)]);
        service.round().await.unwrap();
        let events = turned(&**store).await;
        let at = i64::try_from(second).unwrap() - 1_800;
        told.extend(events.into_iter().skip(told.len()).map(|(what, why)| (at, what, why)));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    told
}

async fn kept_for(store: &dyn Store, seconds: u32, ahead: Ahead) {
    let change = TaskChange { keep: KeepFor::seconds(seconds), ahead: Some(ahead), ..TaskChange::default() };
    store.change_task(TASK, change).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_sleeps_is_awake_before_its_daily_peak_and_two_schedulers_do_not_take_turns() {
    let (store, variants) = store_with_ladder().await;
    kept_for(&*store, 60, Ahead::On).await;
    asked_at_nine_on(&*store, &[1, 3]).await;
    let told = an_hour(&store, &variants).await;
    let [(slept, first, _), (woke, second, why), (again, third, _)] = &told[..] else { panic!("{told:?}") };
    assert_eq!([first.as_str(), second, third], ["asleep", "awake", "asleep"]);
    assert!(*slept < -1_780, "{told:?}");
    assert!((-70..=-55).contains(woke), "a minute and the loads before: {told:?}");
    assert_eq!(why, "its task was asked 40/s at 09:00 UTC on 2 of the last 2 days, and its loads take 0.0 s");
    assert!((590..700).contains(again), "the peak's five minutes, and five more: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_not_to_be_made_ready_for_or_was_asked_once_sleeps_on() {
    for (ahead, days) in [(Ahead::Off, &[1, 2][..]), (Ahead::On, &[2])] {
        let (store, variants) = store_with_ladder().await;
        kept_for(&*store, 60, ahead).await;
        asked_at_nine_on(&*store, days).await;
        let told = an_hour(&store, &variants).await;
        assert_eq!(told.len(), 1, "{ahead:?}: {told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_is_written_down_once_however_many_see_it() {
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    let began = Instant::now();
    let mut both = [(); 2].map(|()| {
        let (service, handle) = scheduler(&store, &status);
        (service.by_clock(wall(began, Duration::ZERO)), handle)
    });
    for second in 0..=300 {
        for (service, handle) in &mut both {
            handle.set_members(asked(10 * second, 5 * second));
            service.round().await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let all = store.history().slots(&[Slot(0)..Slot(u32::MAX)], None).await.unwrap();
    let bin = Bin { peak_per_1000_s: 15_000, queries: 299 * 15 };
    assert_eq!(all, [SlotSeen { slot: BEGAN, seen_s: 299, bins: [(TASK, bin)].into() }]);
}
