//! Policies that others published, run on the same machines as ours.
//!
//! Each is written from its description in papers, none from anybody's code; what a description leaves open is said in its file and in
//! `docs/policies.md`. All are given the same: the same arrivals, profiles with their 99th percentiles, load times, memory and floors, and one
//! drop rule: who could not be in time even in a batch of one is refused, before a batch is made ([`Queue::drop_late`]).

mod cluster;
mod fixed;
mod place;
mod queue;
#[cfg(test)]
mod testing;

pub use cluster::{Ask, Cluster, Ran};
pub use queue::Queue;

use crate::{Error, Outcome, Scenario};
use cluster::turning::Next;
use modelless_types::Micros;

/// Who decides. Everything it needs to know it asks the [`Cluster`], everything it wants done it tells it.
pub trait Policy {
    /// How often [`Policy::tick`] comes.
    fn every(&self) -> Option<Micros> {
        None
    }

    /// Before the first query, in time for loads.
    fn start(&mut self, cluster: &mut Cluster<'_>);

    /// A query came.
    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask);

    /// A lane has nothing to do.
    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize);

    /// A batch has ended.
    fn ran(&mut self, _cluster: &mut Cluster<'_>, _ran: Ran) {}

    /// A while has passed.
    fn tick(&mut self, _cluster: &mut Cluster<'_>) {}
}

/// A policy by its name.
pub struct Baseline {
    /// As it is asked for.
    pub name: &'static str,
    /// In a line.
    pub what: &'static str,
    make: fn() -> Box<dyn Policy>,
}

/// All of them.
pub const BASELINES: &[Baseline] = &[
    Baseline {
        name: "static-best",
        what: "the most accurate variant that is in time, for ever",
        make: || Box::new(fixed::Fixed::new(fixed::Choice::Best)),
    },
    Baseline {
        name: "static-cheapest",
        what: "the variant with the least device time a query, for ever",
        make: || Box::new(fixed::Fixed::new(fixed::Choice::Cheapest)),
    },
];

/// The one of that name.
pub fn baseline(name: &str) -> Option<&'static Baseline> {
    BASELINES.iter().find(|baseline| baseline.name == name)
}

impl Baseline {
    /// Runs a scenario under it.
    pub fn run(&self, scenario: &Scenario, seed: u64) -> Result<Outcome, Error> {
        run(scenario, (self.make)().as_mut(), seed)
    }
}

/// Runs a scenario under a policy.
pub fn run(scenario: &Scenario, policy: &mut dyn Policy, seed: u64) -> Result<Outcome, Error> {
    let mut cluster = Cluster::new(scenario, seed)?;
    let every = policy.every();
    policy.start(&mut cluster);
    cluster.begin(every);
    loop {
        match cluster.turn(every)? {
            Next::Came(ask) => policy.arrive(&mut cluster, ask),
            Next::Ran(ran) => policy.ran(&mut cluster, ran),
            Next::Tick => policy.tick(&mut cluster),
            Next::Look => {}
            Next::Over => return Ok(cluster.finish()),
        }
        for lane in 0..cluster.lanes() {
            if cluster.idle(lane) {
                policy.fill(&mut cluster, lane);
            }
        }
    }
}
