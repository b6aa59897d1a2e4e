//! What to do about machines: which to ask for, to drain, to take away, to adopt. A pure function of what is written down, what
//! providers and the live state tell, and the time.
//!
//! How many there should be is for [`crate::hire`] to say. Here is how to get there while anything may fail: a provider that has
//! none, refuses, does not answer, or is slow; a machine that never joins or dies; a scheduler that was killed between asking and
//! writing down. Three things make that safe. What is wanted is written down before the provider is asked. Every request carries
//! the machine's name, so asking again makes no second one. And what a provider lists that nobody wrote down is found, and counted
//! against maximum and budget before anything else is asked for.

mod limits;
mod rules;
mod startup;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use limits::{Blocked, PoolReport};
pub use rules::decide;
pub use startup::{Ended, Failures, Lateness, StartUp, Strain};

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{MachineId, MachineState, Micros, PricePerHour, Time};
use serde::{Deserialize, Serialize};

/// Machines that are alike and come from one provider.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// So many whatever is asked.
    pub least: u32,
    /// Never more, those counted that are on their way in or out.
    pub most: u32,
    /// What one costs.
    pub price: PricePerHour,
    /// One that has not joined by then never will.
    pub joins_within: Micros,
    /// One that has not ended what it had by then is taken away all the same.
    pub drains_within: Micros,
    /// A provider's list may lack what was started so shortly before it was asked for.
    pub settles: Micros,
    /// One that ends unasked so soon after it joined counts as one that failed to start.
    pub young: Micros,
    /// One that is silent for so long is lost, also if its provider has it.
    pub lost_after: Micros,
}

/// A machine as it is written down.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Its number.
    pub id: MachineId,
    /// Its pool.
    pub pool: String,
    /// Its name: that of its node, and what its provider has it by.
    pub name: String,
    /// What its provider calls it, once that is known.
    pub instance: Option<String>,
    /// Where it stands.
    pub state: MachineState,
    /// Since when.
    pub since: Time,
    /// When it was asked for.
    pub asked: Time,
    /// When it joined.
    pub joined: Option<Time>,
    /// What it costs.
    pub price: PricePerHour,
}

/// A machine that a provider has, and that costs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// The name that it was asked for by.
    pub name: String,
    /// What the provider calls it.
    pub instance: String,
    /// It is on its way out already.
    pub ending: bool,
}

/// What a provider told.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct List {
    /// When it was asked.
    pub at: Time,
    /// All that it has for the pool.
    pub all: Vec<Listed>,
}

impl List {
    fn named(&self, name: &str) -> Option<&Listed> {
        self.all.iter().find(|listed| listed.name == name)
    }
}

/// A node of a machine as the live state tells of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Queries that it has.
    pub queries: u32,
    /// Lanes that run.
    pub busy_lanes: u16,
    /// Takes nothing new.
    pub draining: bool,
}

/// Calls to a provider about one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Calls {
    /// One is not answered yet.
    pub open: bool,
    /// How many came to nothing, one after the other.
    pub failed: u32,
    /// When the last one ended.
    pub last: Time,
    /// No request about it can have been made before, by nobody.
    pub fresh: bool,
}

impl Calls {
    /// After a call.
    #[must_use]
    pub fn ended(self, failed: bool, now: Time) -> Self {
        let failed = if failed { self.failed.saturating_add(1) } else { 0 };
        Self { open: false, failed, last: now, fresh: false }
    }

    /// Whether a provider that refuses has made no such machine for sure. One that was asked before, without an answer, may have: then
    /// its list tells.
    pub fn refused_for_good(&self) -> bool {
        self.fresh
    }

    /// When it may be called again: a second after the first failure, and twice as long after each further one, a minute at most.
    pub fn again(&self) -> Time {
        if self.failed == 0 {
            Time::ZERO
        } else {
            self.last + back_off(Micros::from_secs(1), self.failed, CALLS_REST)
        }
    }
}

/// Between calls that fail, at most.
const CALLS_REST: Micros = Micros::from_secs(60);

/// `first`, twice as long for each further failure, and no more than `most`.
fn back_off(first: Micros, failed: u32, most: Micros) -> Micros {
    Micros(first.0.saturating_mul(1 << failed.saturating_sub(1).min(20)).min(most.0))
}

/// More are wanted than by what is asked now.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Foreseen {
    /// At least and at most so many would be, by that alone.
    pub without: (u32, u32),
    /// For people: what is expected, and how long machines take.
    pub why: String,
}

/// Everything that is known.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Input {
    /// The pools.
    pub pools: Vec<Pool>,
    /// What all machines together may cost, if that is limited.
    pub budget: Option<PricePerHour>,
    /// Machines that have not ended.
    pub machines: Vec<Machine>,
    /// Names of machines that ended lately.
    pub ended: BTreeSet<String>,
    /// What providers told, by pool; none of one that never answered.
    pub listed: BTreeMap<String, List>,
    /// Nodes that are there, by name; nothing where the live state does not answer.
    pub nodes: Option<BTreeMap<String, Node>>,
    /// When a machine's node was last there, or when it was first looked for.
    pub seen: BTreeMap<MachineId, Time>,
    /// At least and at most so many are wanted, by pool.
    pub wanted: BTreeMap<String, (u32, u32)>,
    /// Why so many are, by pool, where earlier days tell of more than is asked now.
    #[serde(default)]
    pub foreseen: BTreeMap<String, Foreseen>,
    /// What failed lately, by pool.
    pub failures: BTreeMap<String, Failures>,
    /// Calls about machines.
    pub calls: BTreeMap<MachineId, Calls>,
    /// When this scheduler began to see to machines: it knows of no call before that.
    #[serde(default)]
    pub began: Time,
}

impl Input {
    fn listed(&self, pool: &str) -> &[Listed] {
        self.listed.get(pool).map_or(&[], |list| &list.all)
    }

    fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.as_ref()?.get(name)
    }

    fn calls(&self, id: MachineId) -> Calls {
        self.calls.get(&id).copied().unwrap_or_default()
    }

    /// What is listed and not written down.
    fn orphans<'a>(&'a self, pool: &'a str) -> impl Iterator<Item = &'a Listed> {
        let known = |name: &str| self.machines.iter().any(|machine| machine.name == name);
        self.listed(pool).iter().filter(move |listed| !known(&listed.name))
    }
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Write down that one more is wanted.
    Ask {
        /// Where.
        pool: String,
        /// Why.
        why: String,
    },
    /// Ask the provider for it.
    Start {
        /// Which.
        machine: MachineId,
    },
    /// Write down where it stands now.
    Move {
        /// Which.
        machine: MachineId,
        /// To where.
        to: MachineState,
        /// What its provider calls it, where that was not known.
        instance: Option<String>,
        /// Why.
        why: String,
    },
    /// Ask the provider to take it away.
    Stop {
        /// Which.
        machine: MachineId,
        /// What the provider calls it.
        instance: String,
    },
    /// Write down one that nobody did.
    Adopt {
        /// Where.
        pool: String,
        /// Its name.
        name: String,
        /// What its provider calls it.
        instance: String,
        /// Why.
        why: String,
    },
    /// Ask the provider to take away one that nobody wrote down.
    Remove {
        /// Where.
        pool: String,
        /// What the provider calls it.
        instance: String,
        /// Why.
        why: String,
    },
}

/// What to do, and how things stand.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Decision {
    /// In this order.
    pub steps: Vec<Step>,
    /// By pool.
    pub pools: Vec<PoolReport>,
}
