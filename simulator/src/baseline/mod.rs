//! Policies that others published, run on the same machines as ours.
//!
//! Each is written from its description in papers, none from anybody's code; what a description leaves open is said in its file and in
//! `docs/policies.md`. All are given the same: the same arrivals, profiles with their 99th percentiles, load times, memory and floors, and one
//! drop rule: who could not be in time even in a batch of one is refused, before a batch is made ([`Queue::drop_late`]).

mod clipper;
mod clockwork;
mod cluster;
mod dedicated;
mod fixed;
mod given;
mod infaas;
mod infaas_code;
mod inferline;
mod mark;
mod nexus;
mod place;
mod proteus;
mod queue;
mod slackfit;
mod switching;
mod symphony;
#[cfg(test)]
mod testing;
mod vms;

pub use cluster::{Ask, Cluster, Ran};
pub use given::Given;
pub use queue::Queue;

use crate::{Error, Outcome, Scenario};
use cluster::turning::Next;
use modelless_types::Micros;

/// Who decides. Everything it needs to know it asks the [`Cluster`], everything it wants done it tells it.
pub trait Policy {
    /// Whether it starts and stops machines. For one that does not, all are there, and paid, all the time.
    fn scales(&self) -> bool {
        false
    }

    /// A machine that was asked for is there.
    fn started(&mut self, _cluster: &mut Cluster<'_>, _node: usize) {}

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
    make: fn(&Given) -> Box<dyn Policy>,
}

/// All of them.
pub const BASELINES: &[Baseline] = &[
    Baseline {
        name: "static-best",
        what: "the most accurate variant that is in time, for ever",
        make: |given| Box::new(fixed::Fixed::new(fixed::Choice::Best, given)),
    },
    Baseline {
        name: "static-cheapest",
        what: "the variant with the least device time a query, for ever",
        make: |given| Box::new(fixed::Fixed::new(fixed::Choice::Cheapest, given)),
    },
    Baseline {
        name: "infaas-paper",
        what: "INFaaS as its paper tells it",
        make: |given| Box::new(infaas::Infaas::new(given)),
    },
    Baseline {
        name: "infaas-code",
        what: "INFaaS as its published code does it",
        make: |given| Box::new(infaas_code::InfaasCode::new(given)),
    },
    Baseline {
        name: "clipper",
        what: "the most accurate model each, batches by additive increase and multiplicative decrease",
        make: |given| Box::new(clipper::Clipper::new(fixed::Choice::Best, given)),
    },
    Baseline {
        name: "clipper-ht",
        what: "the same with the cheapest model",
        make: |given| Box::new(clipper::Clipper::new(fixed::Choice::Cheapest, given)),
    },
    Baseline {
        name: "model-switching",
        what: "by load, the model with the best accuracy times probability of being in time",
        make: |given| Box::new(switching::Switching::new(given)),
    },
    Baseline {
        name: "slackfit",
        what: "SuperServe's: slack picks variant and batch",
        make: |given| Box::new(slackfit::SlackFit::new(given)),
    },
    Baseline {
        name: "proteus-like",
        what: "a plan of a variant for each lane every 10 s",
        make: |given| Box::new(proteus::Proteus::new(given)),
    },
    Baseline {
        name: "nexus",
        what: "squishy bin packing of the most accurate models, early drop",
        make: |given| Box::new(nexus::Nexus::new(given)),
    },
    Baseline {
        name: "clockwork-like",
        what: "one controller loads by demand and runs what must start first, the most accurate models",
        make: |given| Box::new(clockwork::Clockwork::new(given)),
    },
    Baseline {
        name: "symphony-like",
        what: "batches of the most accurate models, dispatched as late as is safe",
        make: |given| Box::new(symphony::Symphony::new(given)),
    },
    Baseline {
        name: "inferline-like",
        what: "replicas planned on a sample, tuned by traffic envelopes; the cheapest models",
        make: |given| Box::new(inferline::InferLine::new(given)),
    },
    Baseline {
        name: "mark-like",
        what: "machines by a forecast of minutes, cheapest for what they serve; the cheapest models",
        make: |given| Box::new(mark::Mark::new(given)),
    },
];

/// The one of that name.
pub fn baseline(name: &str) -> Option<&'static Baseline> {
    BASELINES.iter().find(|baseline| baseline.name == name)
}

impl Baseline {
    /// Runs a scenario under it, with what the search chose for it.
    pub fn run(&self, scenario: &Scenario, seed: u64) -> Result<Outcome, Error> {
        self.run_with(scenario, &crate::tuning::chosen_for(self.name), seed)
    }

    /// Runs a scenario under it, with these values instead of those of its description.
    pub fn run_with(&self, scenario: &Scenario, given: &Given, seed: u64) -> Result<Outcome, Error> {
        run(scenario, (self.make)(given).as_mut(), seed)
    }
}

/// Runs a scenario under a policy.
pub fn run(scenario: &Scenario, policy: &mut dyn Policy, seed: u64) -> Result<Outcome, Error> {
    Ok(drive(scenario, policy, seed)?.finish())
}

/// The machines when nothing is left.
fn drive<'a>(scenario: &'a Scenario, policy: &mut dyn Policy, seed: u64) -> Result<Cluster<'a>, Error> {
    let mut cluster = Cluster::new(scenario, seed, policy.scales())?;
    let every = policy.every();
    policy.start(&mut cluster);
    cluster.begin(every);
    loop {
        match cluster.turn(every)? {
            Next::Came(ask) => policy.arrive(&mut cluster, ask),
            Next::Ran(ran) => policy.ran(&mut cluster, ran),
            Next::Tick => policy.tick(&mut cluster),
            Next::Started(node) => policy.started(&mut cluster, node),
            Next::Look => {}
            Next::Over => return Ok(cluster),
        }
        for lane in 0..cluster.lanes() {
            if cluster.idle(lane) {
                policy.fill(&mut cluster, lane);
            }
        }
    }
}
