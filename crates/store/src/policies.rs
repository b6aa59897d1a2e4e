//! What holds for the queries of a tenant or an application beside what they say themselves: goals where they give none, bounds on what
//! they may ask for, who answers, and what part of devices' time an application gets where not all can be answered in time.

use crate::access::Owner;
use crate::check;
use crate::error::{Error, Result};
use modelless_types::{Accuracy, AppId, CostPer1k, Micros, Prefer, Share, TaskId, TenantId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Policies of all tenants together; there is room for no more.
pub const POLICIES_MAX: usize = 10_000;
/// The longest bound on a latency, as for queries.
const LATENCY_MAX: Micros = Micros::from_secs(3_600);
/// The longest name of a model or variant.
const NAME_MAX: usize = 200;
/// The heaviest weight.
pub const WEIGHT_MAX: u32 = 1_000;
/// The least that can be reserved: so no more than a hundred have something reserved.
const RESERVE_MIN_PPM: u32 = 10_000;
/// All of it, in parts per million.
const WHOLE: u64 = 1_000_000;

/// Goals where a query gives none. They go before those of its task.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyGoals {
    /// A floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
    /// From arrival to the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Micros>,
    /// A ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<CostPer1k>,
    /// What idle capacity is spent on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefer: Option<Prefer>,
}

/// Bounds that hold whatever a query asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyBounds {
    /// No floor is lower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
    /// No ceiling is higher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<CostPer1k>,
}

/// All of it. What is not said is left to whoever asks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Where a query gives none.
    #[serde(skip_serializing_if = "is_nothing")]
    pub goals: PolicyGoals,
    /// Whatever it gives.
    #[serde(skip_serializing_if = "is_nothing")]
    pub bounds: PolicyBounds,
    /// Only this model answers: a name, or NAME@VERSION.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Only this variant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// What it gets of a task's devices beside others, where not all can be answered in time.
    #[serde(skip_serializing_if = "is_nothing")]
    pub share: PolicyShare,
}

/// What an application gets of the devices' time of a task, where not all can be answered in time. An older version cannot read a policy
/// that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyShare {
    /// So much beside others, each of which has 1 where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// So much whatever others ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Share>,
}

fn is_nothing<T: Default + PartialEq>(of: &T) -> bool {
    *of == T::default()
}

impl Policy {
    /// Whether it says anything.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What holds in every store.
    pub(crate) fn check(&self, of: PolicyOf) -> Result<()> {
        let refuse = |why: &str| Err(Error::invalid("policy", why));
        if let Some(latency) = self.goals.latency
            && !(1..=LATENCY_MAX.0).contains(&latency.0)
        {
            return refuse("its latency is none; expected more than 0 and at most an hour");
        }
        for cost in [self.goals.max_cost, self.bounds.max_cost].into_iter().flatten() {
            check::number("policy", cost.0)?;
        }
        if of.task.is_none() && (self.model.is_some() || self.variant.is_some()) {
            return refuse("models and variants are a task's; say for which task they are pinned");
        }
        for name in [&self.model, &self.variant].into_iter().flatten() {
            if name.is_empty() || name.chars().count() > NAME_MAX {
                return refuse("a pinned model or variant needs a name of at most 200 characters");
            }
        }
        if let Owner::Tenant(_) = of.owner
            && self.share != PolicyShare::default()
        {
            return refuse("weights and reserved shares are an application's; name one");
        }
        if self.share.weight.is_some_and(|weight| !(1..=WEIGHT_MAX).contains(&weight)) {
            return refuse("its weight is none; expected a whole number from 1 to 1,000");
        }
        if self.share.reserve.is_some_and(|share| share.ppm() < RESERVE_MIN_PPM) {
            return refuse("what it reserves is too little; expected from 1 % to 100 %");
        }
        Ok(())
    }
}

/// For whose queries, and to which task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PolicyOf {
    /// Whose.
    pub owner: Owner,
    /// To this one; `None` is every task.
    pub task: Option<TaskId>,
}

impl PolicyOf {
    pub(crate) fn no_owner(self) -> Error {
        match self.owner {
            Owner::Tenant(id) => Error::not_found("tenant", id),
            Owner::App(id) => Error::not_found("application", id),
        }
    }

    /// As it stands in a table: 0 is all applications, and all tasks.
    pub(crate) fn read(tenant: TenantId, app: u32, task: u32) -> Self {
        let owner = if app == 0 { Owner::Tenant(tenant) } else { Owner::App(AppId(app)) };
        Self { owner, task: (task != 0).then_some(TaskId(task)) }
    }
}

/// Refuses what would leave more reserved of some task than there is. `reserved` is what each policy says, the new one in its place.
pub(crate) fn check_reserved(reserved: &BTreeMap<PolicyOf, Share>) -> Result<()> {
    let apps: BTreeSet<Owner> = reserved.keys().map(|of| of.owner).collect();
    // Of a task for which no application says anything else as much is reserved as for all.
    let tasks: BTreeSet<Option<TaskId>> =
        reserved.keys().map(|of| of.task).chain(core::iter::once(None)).collect();
    for task in tasks {
        let of = |owner: &Owner| {
            let own = |task| reserved.get(&PolicyOf { owner: *owner, task });
            own(task).or_else(|| own(None)).map_or(0, |share| u64::from(share.ppm()))
        };
        let all: u64 = apps.iter().map(of).sum();
        if all > WHOLE {
            return Err(Error::OverReserved { task, ppm: all });
        }
    }
    Ok(())
}
