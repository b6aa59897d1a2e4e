//! Batches that slow each other down: fewer run side by side, which is shown and told, until more is asked.

use super::*;
use modelless_store::EventKind;
use std::sync::atomic::AtomicBool;
use tokio::time::{Instant, timeout};

const ALONE: Duration = Duration::from_millis(20);
/// So long that what is asked in a round fits on one lane: three times what one takes alone.
const CROWDED: Duration = Duration::from_millis(75);
const BOUND: Duration = Duration::from_millis(200);

/// When batches ran, and whether they are as slow as beside others.
#[derive(Default)]
struct Ran {
    crowded: AtomicBool,
    batches: Mutex<Vec<(Instant, Instant)>>,
}

impl Ran {
    fn model(this: &Arc<Self>) -> FakeModel {
        let ran = Arc::clone(this);
        let latency = move |_: u32| {
            let takes = if ran.crowded.load(Ordering::Relaxed) { CROWDED } else { ALONE };
            let now = Instant::now();
            ran.batches.lock().expect("no panic").push((now, now + takes));
            takes
        };
        FakeModel { latency: Arc::new(latency), ..echo() }
    }

    /// The most that ran at once of those that began since.
    fn most_since(&self, since: Instant) -> usize {
        let batches = self.batches.lock().expect("no panic");
        let since: Vec<_> = batches.iter().filter(|(began, _)| *began >= since).collect();
        let with = |at: Instant| since.iter().filter(|(began, ends)| *began <= at && at < *ends).count();
        since.iter().map(|(began, _)| with(*began)).max().unwrap_or(0)
    }
}

/// Asks so many at once, and waits until all have ended.
async fn ask(bed: &mut Bed, key: &mut u64, count: u64) {
    let only = [bed.variants[0].ordinal].into_iter().collect();
    for _ in 0..count {
        *key += 1;
        bed.send(*key, BOUND, only, distinct(*key % 1_000));
    }
    for _ in 0..count {
        bed.hear().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_slow_each_other_down_run_one_after_another_until_more_is_asked() {
    let config = Config { lanes: 2, ..config() };
    let mut bed = bed_with(Setup { config, slow: 100.0, ..Setup::default() }).await;
    let ran = Arc::<Ran>::default();
    bed.engine.behave(bed.variants[0].id, Ran::model(&ran));
    bed.handle.send(ToNode::Pin { plan: PlanId(1), pins: vec![(DeviceIx(0), bed.variants[0].id)] });
    let mut status = bed.handle.status();
    let active = |status: &NodeStatus| status.replicas.iter().any(|one| one.state == ReplicaState::Active);
    drop(timeout(LONG, status.wait_for(active)).await.expect("in time").expect("open"));
    let (mut key, began) = (0, Instant::now());
    // Two side by side are slow, one alone is not.
    while status.borrow().narrowed.is_none() {
        assert!(began.elapsed() < LONG, "{:?}", status.borrow().replicas);
        ran.crowded.store(true, Ordering::Relaxed);
        ask(&mut bed, &mut key, 2).await;
        ran.crowded.store(false, Ordering::Relaxed);
        ask(&mut bed, &mut key, 1).await;
    }
    let narrowed = status.borrow().narrowed.clone().expect("just seen");
    assert_eq!((narrowed.lanes, narrowed.of), (1, 2), "{}", narrowed.cause);
    assert!(ran.most_since(began) > 1, "they ran side by side before");
    let since = Instant::now();
    for _ in 0..10 {
        ask(&mut bed, &mut key, 2).await;
    }
    assert_eq!(ran.most_since(since), 1);
    let began = Instant::now();
    while status.borrow().narrowed.is_some() {
        assert!(began.elapsed() < LONG, "{:?}", status.borrow().narrowed);
        ask(&mut bed, &mut key, 30).await;
    }
    let store = bed.end().await;
    let events = store.events(None, 100).await.expect("events");
    let told: Vec<_> = events
        .iter()
        .filter(|event| event.about.kind == EventKind::Node)
        .map(|event| (event.about.what.as_str(), event.about.cause.as_str()))
        .collect();
    let of = |what: &str| told.iter().find(|(told, _)| *told == what).map(|(_, cause)| *cause);
    assert!(
        of("narrowed").is_some_and(|cause| cause.starts_with("1 of 2 lanes run side by side: ")),
        "{told:?}"
    );
    assert!(
        of("full width").is_some_and(|cause| cause.contains("2 of 2") && cause.contains("is asked of")),
        "{told:?}"
    );
}
