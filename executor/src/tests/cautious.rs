//! Who is late although the look ahead had found room makes a node cautious, which is shown until it has faded.

use super::*;
use tokio::time::timeout;

/// Both variants were measured to take a few milliseconds, and then take this long.
const LASTS: Duration = Duration::from_millis(400);
const BOUND: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_late_without_having_been_foreseen_makes_the_node_say_that_it_is_cautious() {
    let mut bed = bed_with(Setup { slow: 10.0, ..Setup::default() }).await;
    let mut status = bed.handle.status();
    assert_eq!(status.borrow().caution, None);
    bed.handle.send(ToNode::Pin { plan: PlanId(1), pins: vec![(DeviceIx(0), bed.variants[1].id)] });
    let active = |status: &NodeStatus| status.replicas.iter().any(|one| one.state == ReplicaState::Active);
    drop(timeout(LONG, status.wait_for(active)).await.expect("in time").expect("open"));
    bed.behave(&FakeModel { latency: Arc::new(|_| LASTS), ..echo() });
    for key in 1..=40 {
        bed.send(key, BOUND, bed.all(), distinct(key));
    }
    for _ in 0..40 {
        bed.hear().await;
    }
    let cautious = |status: &NodeStatus| status.caution.is_some_and(|caution| caution > 1.0);
    let told = timeout(LONG, status.wait_for(cautious)).await.expect("in time").expect("open").caution;
    let tenths = told.expect("just seen") * 10.0;
    assert!((tenths - tenths.round()).abs() < 1e-9, "what fades all the time is told in steps: {tenths}");
    bed.end().await;
}
