//! How many more there may be: maximum, budget, and the rest after failures.

use super::{Input, Pool};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use core::fmt;
use modelless_types::{MachineState, PricePerHour, Time};
use serde::{Deserialize, Serialize};

/// Why no more are asked for although they are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "blocked", rename_all = "snake_case")]
pub enum Blocked {
    /// The pool has as many as it may.
    Maximum {
        /// So many.
        most: u32,
    },
    /// One more would cost more than may be spent.
    Budget {
        /// What all would cost then.
        would: PricePerHour,
        /// What they may.
        budget: PricePerHour,
    },
    /// Those before failed.
    Resting {
        /// How many in a row.
        failed: u32,
        /// Until when.
        until: Time,
    },
    /// What its provider has is not known, so there might be too many.
    Unknown,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Maximum { most } => write!(f, "its maximum is {most}"),
            Self::Budget { would, budget } => write!(
                f,
                "one more would make it {} USD an hour, and {} may be spent",
                would.as_usd(),
                budget.as_usd()
            ),
            Self::Resting { failed, .. } => write!(f, "{failed} failed in a row; it is tried again later"),
            Self::Unknown => write!(f, "its provider does not tell which machines there are"),
        }
    }
}

/// How a pool stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolReport {
    /// Which.
    pub pool: String,
    /// At least so many are wanted.
    pub least: u32,
    /// At most so many.
    pub most: u32,
    /// Machines that serve or will.
    pub there: u32,
    /// Machines that cost.
    pub paid: u32,
    /// Why there are not more, where more are wanted.
    pub blocked: Option<Blocked>,
}

/// What costs now, and what more may.
pub(super) struct Limits<'a> {
    input: &'a Input,
    paid: BTreeMap<&'a str, u32>,
    spent: u64,
    /// Of these, what somebody was asked to take away just now: it costs until it is gone.
    leaves: BTreeMap<&'a str, u32>,
    saved: u64,
    /// Pools where one more was let in now.
    more: BTreeSet<&'a str>,
}

impl<'a> Limits<'a> {
    /// Counts everything that costs or may: what is written down and what is listed.
    pub(super) fn new(input: &'a Input) -> Self {
        let mut limits = Self {
            input,
            paid: BTreeMap::new(),
            spent: 0,
            leaves: BTreeMap::new(),
            saved: 0,
            more: BTreeSet::new(),
        };
        for machine in input.machines.iter().filter(|machine| !machine.state.ended()) {
            limits.pay(&machine.pool, machine.price);
        }
        for pool in &input.pools {
            for _ in input.orphans(&pool.name) {
                limits.pay(&pool.name, pool.price);
            }
        }
        limits
    }

    fn pay(&mut self, pool: &'a str, price: PricePerHour) {
        *self.paid.entry(pool).or_default() += 1;
        self.spent = self.spent.saturating_add(price.0);
    }

    pub(super) fn paid(&self, pool: &str) -> u32 {
        self.paid.get(pool).copied().unwrap_or(0)
    }

    /// Whether there are more than may be, those left out that leave.
    pub(super) fn over(&self, pool: &Pool) -> bool {
        let leaves = self.leaves.get(pool.name.as_str()).copied().unwrap_or(0);
        let spent = self.spent.saturating_sub(self.saved);
        self.paid(&pool.name) > pool.most + leaves || self.input.budget.is_some_and(|budget| spent > budget.0)
    }

    /// Somebody is asked to take one away.
    pub(super) fn leaves(&mut self, pool: &'a Pool) {
        *self.leaves.entry(&pool.name).or_default() += 1;
        self.saved = self.saved.saturating_add(pool.price.0);
    }

    /// Takes room for one more, or says why there is none.
    pub(super) fn one_more(&mut self, pool: &'a Pool, now: Time) -> Result<(), Blocked> {
        if !self.input.listed.contains_key(&pool.name) {
            return Err(Blocked::Unknown);
        }
        if self.paid(&pool.name) >= pool.most {
            return Err(Blocked::Maximum { most: pool.most });
        }
        let would = PricePerHour(self.spent.saturating_add(pool.price.0));
        if let Some(budget) = self.input.budget.filter(|budget| would > *budget) {
            return Err(Blocked::Budget { would, budget });
        }
        let failures = self.input.failures.get(&pool.name).copied().unwrap_or_default();
        if let Some(until) = failures.until().filter(|until| *until > now) {
            return Err(Blocked::Resting { failed: failures.in_a_row, until });
        }
        // While those before have failed, one is tried and not all at once.
        let tried = |state| matches!(state, MachineState::Asked | MachineState::Starting);
        let trying = self.input.machines.iter().any(|m| m.pool == pool.name && tried(m.state));
        if failures.in_a_row > 0 && (trying || self.more.contains(pool.name.as_str())) {
            return Err(Blocked::Resting { failed: failures.in_a_row, until: now });
        }
        self.pay(&pool.name, pool.price);
        self.more.insert(&pool.name);
        Ok(())
    }
}
