//! Machines that a policy starts and stops. One takes its start-up time until it can load models, ends what it runs before it is gone,
//! and is paid from when it is asked for until then.

use super::{Cluster, Ev};
use modelless_decision::{Moments, Rank};
use modelless_types::{Bytes, Micros};

/// Whether a machine is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Away,
    /// On its way, and which start it was.
    Starting(u64),
    Here,
    /// It ends what it runs, and is gone.
    Leaving,
}

impl Cluster<'_> {
    /// Whether a machine is there and can load models and run them.
    pub fn here(&self, node: usize) -> bool {
        self.machines[node].life == Life::Here
    }

    /// Whether a machine is there, or on its way.
    pub fn hired(&self, node: usize) -> bool {
        matches!(self.machines[node].life, Life::Here | Life::Starting(_))
    }

    /// Whether a machine can be started and stopped.
    pub fn rented(&self, node: usize) -> bool {
        self.scenario.nodes[node].rented.is_some()
    }

    /// What a machine usually takes to start.
    pub fn start_up(&self, node: usize) -> Micros {
        self.scenario.nodes[node].rented.map_or(Micros::ZERO, |rented| rented.start_up)
    }

    /// Machines that are alike: of one class, at one price.
    pub fn kinds(&self) -> Vec<Vec<usize>> {
        self.scenario.kinds()
    }

    /// Time on all lanes of a machine so far, in microseconds.
    pub fn worked_us(&self, node: usize) -> u64 {
        self.machines[node].worked_us
    }

    /// Asks for a machine. `false` unless it is rented and away.
    pub fn rent(&mut self, node: usize) -> bool {
        let Some(rented) =
            self.scenario.nodes[node].rented.filter(|_| self.machines[node].life == Life::Away)
        else {
            return false;
        };
        let mean = Moments::exactly(rented.start_up);
        let sd = mean.mean * rented.scatter;
        let took = self.starts.duration(Moments { var: sd * sd, ..mean });
        self.next_load += 1;
        let start = self.next_load;
        self.machines[node].life = Life::Starting(start);
        self.meter.open(node, self.now);
        self.heap.push(self.now + took, Rank::Completion, Ev::Started { node, start });
        true
    }

    /// Gives a machine back once it has ended what it runs; what was in its memory is gone. `false` unless it is rented and there or on
    /// its way.
    pub fn release(&mut self, node: usize) -> bool {
        if !self.rented(node) || !self.hired(node) {
            return false;
        }
        self.machines[node].life = Life::Leaving;
        self.gone_if_idle(node);
        true
    }

    /// A machine that leaves is gone once it runs nothing.
    pub(super) fn gone_if_idle(&mut self, node: usize) {
        if self.machines[node].life != Life::Leaving || self.busy_lanes(node) > 0 {
            return;
        }
        let whole = self.scenario.nodes[node].worker.devices.first().map_or(Bytes(0), |d| d.memory);
        let machine = &mut self.machines[node];
        (machine.life, machine.free) = (Life::Away, whole);
        machine.models.clear();
        machine.lives += 1;
        self.meter.close(node, self.now);
    }

    /// A machine has come, unless it was given back meanwhile.
    pub(super) fn came(&mut self, node: usize, start: u64) -> bool {
        let came = self.machines[node].life == Life::Starting(start);
        if came {
            self.machines[node].life = Life::Here;
        }
        came
    }
}
