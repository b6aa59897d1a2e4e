//! What queries came to: for whoever watches them as they end, and for who asks afterwards. While nobody watches, a query pays for one
//! look at a counter, and for being kept ([`Past`]).

use crate::access::{Caller, Origins};
use crate::ask::Answered;
use crate::errors::ApiError;
use crate::past::Past;
use modelless_decision::trial::OnTrial;
use modelless_store::UnixMicros;
use modelless_types::{
    Accuracy, CostPer1k, Goals, Micros, NodeId, QueryKey, QueryNumber, TaskId, Time, VariantId,
};
use modelless_wire::Reason;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;
use tokio::sync::broadcast;

/// So many wait for one who watches; what comes while they do is counted and lost to him.
const WAITING: usize = 1_024;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) task: TaskId,
    /// With the task's default, as the next two.
    pub(crate) accuracy: Option<Accuracy>,
    pub(crate) latency: Option<Micros>,
    pub(crate) max_cost: Option<CostPer1k>,
    /// As they were given, and as policies have it.
    pub(crate) goals: Goals,
    /// Where each comes from.
    pub(crate) from: Origins,
}

/// What it came to.
#[derive(Clone, Debug)]
pub(crate) enum Came {
    Answered {
        variant: VariantId,
        node: Option<NodeId>,
        batch: u32,
        why: Reason,
        predicted: Micros,
        queued: Micros,
        /// Of that at the node.
        queued_at_node: Micros,
        decode: Micros,
        prepare: Micros,
        /// The whole batch, as expected (99th percentile) and as it was.
        predicted_run: Micros,
        run: Micros,
        at_node: Micros,
        total: Micros,
        cost: CostPer1k,
        /// It was given before, and is given again.
        again: bool,
    },
    Refused(&'static str),
}

/// A query that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    pub(crate) at: UnixMicros,
    pub(crate) query: QueryNumber,
    /// The same inside this process.
    pub(crate) key: QueryKey,
    pub(crate) arrived: Time,
    pub(crate) caller: Caller,
    pub(crate) asked: Asked,
    pub(crate) came: Came,
    /// The trial that it was drawn for, so that the version on trial had it.
    pub(crate) trial: Option<OnTrial>,
}

/// Where queries are told of, and where those who watch hear of them.
pub(crate) struct Decisions {
    /// The channel would tell how many listen, but behind its lock.
    watching: AtomicUsize,
    told: broadcast::Sender<Decision>,
    pub(crate) past: Past,
}

impl Default for Decisions {
    fn default() -> Self {
        Self { watching: AtomicUsize::new(0), told: broadcast::Sender::new(WAITING), past: Past::default() }
    }
}

impl Decisions {
    pub(crate) fn tell(
        &self,
        (query, key, arrived): (QueryNumber, QueryKey, Time),
        trial: Option<OnTrial>,
        caller: &Caller,
        asked: &Asked,
        result: &Result<Answered, ApiError>,
    ) {
        let came = match result {
            Ok(Answered { answer, node, predicted, queued, total, cached, key: _, seen: _ }) => {
                Came::Answered {
                    variant: answer.variant,
                    node: *node,
                    batch: answer.batch,
                    why: answer.why,
                    predicted: *predicted,
                    queued: *queued,
                    queued_at_node: answer.queued,
                    decode: answer.decode,
                    prepare: answer.prepare,
                    predicted_run: answer.predicted_run,
                    run: answer.run,
                    at_node: answer.at_node,
                    total: *total,
                    cost: answer.cost,
                    again: cached.is_some(),
                }
            }
            Err(error) => Came::Refused(error.reason),
        };
        let at = UnixMicros::of(SystemTime::now());
        let decision =
            Decision { at, query, key, arrived, caller: caller.clone(), asked: *asked, came, trial };
        if self.watching.load(Ordering::Relaxed) > 0 {
            let _whoever_watched_may_be_gone = self.told.send(decision.clone());
        }
        self.past.keep(decision);
    }

    /// Counts one who watches, until what is returned is dropped.
    pub(crate) fn listen(self: &Arc<Self>) -> Listener {
        self.watching.fetch_add(1, Ordering::Relaxed);
        Listener { of: Arc::clone(self), hears: self.told.subscribe() }
    }
}

/// One who watches.
pub(crate) struct Listener {
    of: Arc<Decisions>,
    pub(crate) hears: broadcast::Receiver<Decision>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.of.watching.fetch_sub(1, Ordering::Relaxed);
    }
}
