//! What machines cost: each for as long as it is rented, from when it is asked for until it is gone.

use crate::outcome::ratio;
use crate::scenario::Scenario;
use modelless_types::{Micros, Time};

struct Paid {
    usd_per_hour: f64,
    lanes: u64,
    since: Option<Time>,
    all: Micros,
    /// Of that, since the first query could come.
    served: Micros,
}

/// The meters of all machines.
pub(crate) struct Meter {
    start: Time,
    machines: Vec<Paid>,
    starts: u64,
}

/// What the meters say at the end.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Bill {
    pub(crate) usd: f64,
    pub(crate) served_usd: f64,
    /// Lanes' time since the first query could come, in microseconds.
    pub(crate) lanes_us: u64,
    pub(crate) starts: u64,
}

impl Meter {
    /// Those that run from the beginning run.
    pub(crate) fn new(scenario: &Scenario, there: impl Fn(usize) -> bool) -> Self {
        let paid = |(at, node): (usize, &crate::NodeSpec)| Paid {
            usd_per_hour: node.usd_per_hour(),
            lanes: node.worker.devices.iter().map(|d| u64::from(d.lanes.max(1))).sum(),
            since: there(at).then_some(Time::ZERO),
            all: Micros::ZERO,
            served: Micros::ZERO,
        };
        let machines = scenario.nodes.iter().enumerate().map(paid).collect();
        Self { start: Time::ZERO + scenario.start, machines, starts: 0 }
    }

    /// A machine is asked for.
    pub(crate) fn open(&mut self, node: usize, now: Time) {
        self.starts += 1;
        self.machines[node].since.get_or_insert(now);
    }

    /// A machine is gone.
    pub(crate) fn close(&mut self, node: usize, now: Time) {
        let (start, paid) = (self.start, &mut self.machines[node]);
        if let Some(since) = paid.since.take() {
            paid.all += now - since;
            paid.served += now - since.max(start);
        }
    }

    /// All that was paid until then.
    pub(crate) fn finish(mut self, end: Time) -> Bill {
        for node in 0..self.machines.len() {
            self.close(node, end);
        }
        let usd = |of: &dyn Fn(&Paid) -> Micros| {
            let each = self.machines.iter().map(|paid| paid.usd_per_hour * ratio(of(paid).0, 3_600_000_000));
            each.sum::<f64>()
        };
        Bill {
            usd: usd(&|paid| paid.all),
            served_usd: usd(&|paid| paid.served),
            lanes_us: self.machines.iter().map(|paid| paid.served.0 * paid.lanes).sum(),
            starts: self.starts,
        }
    }
}
