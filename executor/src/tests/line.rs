//! Loads that stand in line, behind one that hangs and behind one whose file is on its way.

use super::hanging::offered;
use super::*;
use crate::Fetch;
use async_trait::async_trait;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// What a load may take that was measured to take a millisecond, before it is overdue.
const OVERDUE: Duration = Duration::from_secs(1);

/// It is loading.
async fn begins(bed: &Bed, variant: VariantId) {
    let loading = |status: &NodeStatus| {
        let loads = |r: &ReplicaStatus| r.variant == variant && r.state == ReplicaState::Loading;
        status.replicas.iter().any(loads)
    };
    drop(timeout(LONG, bed.handle.status().wait_for(loading)).await.expect("in time").expect("still there"));
}

/// Answers of this variant, to so many queries.
async fn answers(bed: &mut Bed, variant: &Variant, keys: std::ops::Range<u64>) {
    let many = keys.end - keys.start;
    for key in keys {
        bed.send(key, LONG, [variant.ordinal].into_iter().collect(), distinct(key));
    }
    assert_eq!(bed.wrong_of(many).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_hangs_in_loading_holds_others_up_until_it_is_overdue_and_no_longer() {
    let mut bed = bed(None).await;
    let artefact = (bed.variants[0].artefact.clone(), bed.variants[0].artefact_bytes);
    let steady = offered(&bed, "steady", artefact).await;
    let hangs = bed.variants[0].clone();
    bed.engine.behave(hangs.id, FakeModel { load_time: Duration::from_hours(1), ..echo() });
    let since = Instant::now();
    bed.handle.send(ToNode::Wake { task: bed.task, ordinal: hangs.ordinal });
    begins(&bed, hangs.id).await;
    answers(&mut bed, &steady, 0..10).await;
    let waited = since.elapsed();
    assert!(
        waited >= OVERDUE,
        "{waited:?}: one load at a time, as long as they are as long as they should be"
    );
    let replicas = bed.handle.core().driver.look(|worker, _| worker.replicas());
    let state = |id| replicas.iter().find(|r| r.variant == id).map(|r| r.state);
    assert_eq!(
        (state(hangs.id), state(steady.id)),
        (Some(ReplicaState::Loading), Some(ReplicaState::Active))
    );
    bed.end().await;
}

/// Brings what was asked for when it is let.
struct Slow {
    artefacts: Arc<Artefacts>,
    file: &'static [u8],
    asked: AtomicBool,
    may: Notify,
}

#[async_trait]
impl Fetch for Slow {
    async fn fetch(&self, sha256: &str, _: Option<Bytes>) -> Result<(), String> {
        self.asked.store(true, Ordering::SeqCst);
        self.may.notified().await;
        self.artefacts.put_as(sha256, self.file).map(drop).map_err(|error| error.to_string())
    }
}

impl Slow {
    async fn is_asked(&self) {
        let fetching = async {
            while !self.asked.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, fetching).await.expect("it is asked for");
    }
}

/// A variant whose file is somewhere else, and who brings it.
async fn far_away(bed: &Bed) -> (Variant, Arc<Slow>) {
    let file: &[u8] = b"a file that is somewhere else";
    let elsewhere = tempfile::tempdir().expect("a folder");
    let put = Artefacts::new(elsewhere.path()).expect("an artefact store").put(file).expect("an artefact");
    let far = offered(bed, "far", (put.sha256, Bytes(put.bytes))).await;
    let slow = Arc::new(Slow {
        artefacts: bed.handle.artefacts(),
        file,
        asked: AtomicBool::new(false),
        may: Notify::new(),
    });
    bed.handle.fetch_with(Arc::<Slow>::clone(&slow));
    (far, slow)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_fetched_holds_no_load_up_and_is_loaded_when_it_is_there() {
    let mut bed = bed(None).await;
    let (far, slow) = far_away(&bed).await;
    bed.handle.send(ToNode::Wake { task: bed.task, ordinal: far.ordinal });
    begins(&bed, far.id).await;
    slow.is_asked().await;
    let since = Instant::now();
    let near = bed.variants[1].clone();
    answers(&mut bed, &near, 0..10).await;
    let waited = since.elapsed();
    assert!(waited < OVERDUE, "{waited:?}: it waited for a load that does nothing yet");
    slow.may.notify_one();
    answers(&mut bed, &far, 10..20).await;
    let once = |status: &NodeStatus| {
        status.replicas.iter().any(|replica| replica.variant == far.id && replica.loads.count == 1)
    };
    drop(timeout(LONG, bed.handle.status().wait_for(once)).await.expect("in time").expect("still there"));
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_told_to_end_does_not_wait_for_what_is_fetched() {
    let bed = bed(None).await;
    let (far, slow) = far_away(&bed).await;
    bed.handle.send(ToNode::Wake { task: bed.task, ordinal: far.ordinal });
    slow.is_asked().await;
    let since = Instant::now();
    bed.end().await;
    let took = since.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}: it never comes");
}
