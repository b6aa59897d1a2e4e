//! When to measure on a machine that serves: while it has nothing else to do, and beside it once that was waited for long
//! enough.

use modelless_types::ReplicaState;
use modelless_wire::NodeStatus;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// A node to which nothing came for so long has nothing to do. Its status tells counts once a second.
const QUIET: Duration = Duration::from_millis(1_100);

/// Says when a node is busy, for as long as it is asked: whoever measures pauses then. From `until` on it is never said to be.
/// It begins at once where nothing is at hand just now; whoever has time waits for [`quiet`] before.
pub(crate) async fn tell(
    mut status: watch::Receiver<NodeStatus>,
    until: Instant,
    busy: &watch::Sender<bool>,
) -> Infallible {
    let at_once = {
        let status = status.borrow();
        is_idle(&status, status.load.queries)
    };
    if !at_once && timeout_at(until, quiet(&mut status)).await.is_err() {
        tracing::warn!("measured beside serving: this node is never idle");
    }
    loop {
        busy.send_replace(false);
        busy_again(&mut status, until).await;
        busy.send_replace(true);
        if timeout_at(until, quiet(&mut status)).await.is_err() {
            tracing::warn!("measured beside serving: this node is never idle");
        }
    }
}

/// Until nothing came for a while.
pub(crate) async fn quiet(status: &mut watch::Receiver<NodeStatus>) {
    loop {
        let before = match status.wait_for(|status| is_idle(status, status.load.queries)).await {
            Ok(idle) => idle.load.queries,
            Err(_) => return, // the node ends, and so does whoever waits
        };
        if timeout(QUIET, status.wait_for(|status| !is_idle(status, before))).await.is_err() {
            return;
        }
    }
}

/// Until a query came; never, once it need not give way any longer.
async fn busy_again(status: &mut watch::Receiver<NodeStatus>, until: Instant) {
    let before = status.borrow_and_update().load.queries;
    while status.changed().await.is_ok() {
        let busy = !is_idle(&status.borrow_and_update(), before);
        if busy && Instant::now() < until {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Nothing is asked of it, nothing was since `before` queries, and nothing is on its way into memory.
pub(crate) fn is_idle(status: &NodeStatus, before: u64) -> bool {
    let load = &status.load;
    let loading = status.replicas.iter().any(|replica| replica.state == ReplicaState::Loading);
    load.queued == 0 && load.running == 0 && load.queries == before && !loading
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::{Moments, route::NodeInfo};
    use modelless_types::{Bytes, DeviceIx, NodeId, PricePerHour, VariantId};
    use tokio::task::JoinSet;

    fn status() -> NodeStatus {
        let info = NodeInfo { id: NodeId(1), rtt: Moments::ZERO, price: PricePerHour(1), offers: Vec::new() };
        NodeStatus::idle(info, "one", "cpu:a:1")
    }

    #[test]
    fn a_node_is_idle_when_nothing_came_nothing_runs_and_nothing_is_loaded() {
        let mut status = status();
        status.load.queries = 7;
        assert!(is_idle(&status, 7) && !is_idle(&status, 6));
        status.load.running = 1;
        assert!(!is_idle(&status, 7));
        status.load.running = 0;
        status.replicas.push(modelless_wire::ReplicaStatus {
            device: DeviceIx(0),
            variant: VariantId(1),
            state: ReplicaState::Loading,
            memory: Bytes(0),
            slowdown: None,
            cause: String::new(),
            loads: modelless_wire::LoadTimes::default(),
            signs: None,
        });
        assert!(!is_idle(&status, 7));
        status.replicas[0].state = ReplicaState::Active;
        assert!(is_idle(&status, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_busy_from_a_query_until_nothing_came_for_a_while_and_never_after_the_end_of_patience()
    {
        let (node, watched) = watch::channel(status());
        let (busy, mut told) = watch::channel(true);
        let until = Instant::now() + Duration::from_mins(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { tell(watched, until, &busy).await });
        let ask = || node.send_modify(|status| status.load.queries += 1);
        told.wait_for(|busy| !*busy).await.unwrap();
        ask();
        told.wait_for(|busy| *busy).await.unwrap();
        let since = Instant::now();
        told.wait_for(|busy| !*busy).await.unwrap();
        assert!(since.elapsed() >= QUIET);
        // Never idle again: it gives way until its patience is over.
        node.send_modify(|status| status.load.running = 1);
        told.wait_for(|busy| *busy).await.unwrap();
        told.wait_for(|busy| !*busy).await.unwrap();
        assert!(Instant::now() >= until);
        ask();
        assert!(timeout(Duration::from_secs(5), told.wait_for(|busy| *busy)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn where_somebody_waits_it_begins_at_once_unless_there_is_work() {
        for (running, begins) in [(0, true), (1, false)] {
            let mut status = status();
            status.load.running = running;
            let (_node, watched) = watch::channel(status);
            let (busy, mut told) = watch::channel(true);
            let until = Instant::now() + Duration::from_secs(20);
            let mut tasks = JoinSet::new();
            tasks.spawn(async move { tell(watched, until, &busy).await });
            let since = Instant::now();
            told.wait_for(|busy| !*busy).await.unwrap();
            assert_eq!(since.elapsed() < Duration::from_secs(1), begins);
        }
    }
}
