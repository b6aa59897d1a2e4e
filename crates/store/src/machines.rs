//! Machines that are rented, as they are written down: what is wanted first, and then what became of it.

use crate::check;
use crate::error::{Error, Result};
use crate::records::UnixMicros;
use crate::versions::Signed;
use async_trait::async_trait;
use modelless_types::{MachineId, MachineState, PricePerHour};
use serde::{Deserialize, Serialize};

/// Of all pools together so many changes of machines are remembered.
pub const MACHINE_CHANGES_KEPT: u64 = 10_000;
/// Of the last so many machines those that ended are remembered; the others are whatever their number.
pub const MACHINES_KEPT: u64 = 1_000;

/// A machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Number in the store.
    pub id: MachineId,
    /// Its pool.
    pub pool: String,
    /// Unique for ever: that of its node, and what its provider has it by.
    pub name: String,
    /// What its provider calls it, once that is known.
    pub instance: Option<String>,
    /// Where it stands.
    pub state: MachineState,
    /// What it costs.
    pub price: PricePerHour,
    /// When it was asked for.
    pub asked: UnixMicros,
    /// Since when it stands there.
    pub since: UnixMicros,
    /// When its node was there first.
    pub joined: Option<UnixMicros>,
}

/// One more machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMachine {
    /// Its pool.
    pub pool: String,
    /// One that was found at its provider has a name, and what that calls it; another gets `POOL-NUMBER`.
    pub found: Option<(String, String)>,
    /// What it costs.
    pub price: PricePerHour,
    /// At most so many may be in the pool with it, those that have not ended counted.
    pub most: u32,
    /// At most so much may all of all pools cost with it.
    pub budget: Option<PricePerHour>,
    /// Why.
    pub why: String,
    /// Who wants it, and when.
    pub by: Signed,
}

/// Whether a number will do for a new machine.
pub(crate) enum Number {
    Fits,
    /// The one after it is tried.
    Next,
    /// There was one of that name before.
    None,
}

/// A step of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineStep {
    /// Which.
    pub machine: MachineId,
    /// Where it stood.
    pub from: MachineState,
    /// Where it stands.
    pub to: MachineState,
    /// What its provider calls it, where that was not known.
    pub instance: Option<String>,
    /// Why.
    pub why: String,
    /// Who says so, and when.
    pub by: Signed,
}

/// What became of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MachineChange {
    /// In order of time, over all machines.
    pub seq: u64,
    /// Which.
    pub machine: MachineId,
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Where it stood; it was not there before where there is nothing.
    pub from: Option<MachineState>,
    /// Where it stood then.
    pub to: MachineState,
    /// Why.
    pub why: String,
    /// Who said so.
    pub who: String,
    /// When.
    pub at: UnixMicros,
}

/// How a pool stands, for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolStands {
    /// Which.
    pub name: String,
    /// All that there is to say, in JSON.
    pub json: String,
    /// As of when.
    pub at: UnixMicros,
}

/// What is written down of machines. Part of a [`crate::Store`].
#[async_trait]
pub trait Machines: Send + Sync {
    /// Writes down one more, asked for or, if it was found, starting; nothing where there would be more than may be, or where one
    /// that was found is known already. Of many who do this at once each sees what those before it did.
    async fn add_machine(&self, new: NewMachine) -> Result<Option<Machine>>;

    /// Moves a machine on, if it still stands where the caller thought. With its end its node is gone, and what was in memory there. Which
    /// step may follow is not for a store to say, except that nothing follows an end.
    async fn move_machine(&self, step: MachineStep) -> Result<Machine>;

    /// What each machine of a pool that has not ended costs from now on: the budget is one for what they cost, not for what they once did.
    async fn price_machines(&self, pool: &str, price: PricePerHour) -> Result<()>;

    /// Machines that have not ended, by number.
    async fn machines(&self) -> Result<Vec<Machine>>;

    /// Machines that ended, the newest first. See [`MACHINES_KEPT`].
    async fn ended_machines(&self, limit: u32) -> Result<Vec<Machine>>;

    /// The machine of that name, ended ones included.
    async fn machine_named(&self, name: &str) -> Result<Option<Machine>>;

    /// What became of one machine, or of all, newest first. See [`MACHINE_CHANGES_KEPT`].
    async fn machine_changes(&self, machine: Option<MachineId>, limit: u32) -> Result<Vec<MachineChange>>;

    /// Says how pools stand. Others are forgotten.
    async fn put_pools(&self, pools: Vec<PoolStands>) -> Result<()>;

    /// How pools stand, by name.
    async fn pools(&self) -> Result<Vec<PoolStands>>;
}

impl NewMachine {
    pub(crate) fn checked(mut self) -> Result<Self> {
        check::storable(&mut self.why);
        check::name("pool", &self.pool)?;
        check::number("price", self.price.0)?;
        check::signed(&self.by)?;
        if let Some((name, instance)) = &self.found {
            check::name("machine", name)?;
            check::name("instance", instance)?;
        }
        Ok(self)
    }

    /// Whether there is room for it among those that have not ended.
    pub(crate) fn fits(&self, in_pool: u64, spent: u64) -> bool {
        let would = spent.saturating_add(self.price.0);
        in_pool < u64::from(self.most) && self.budget.is_none_or(|budget| would <= budget.0)
    }

    /// Whether the number that a machine was given will do. A name may be taken by one that was found: numbers start again from an older
    /// one when a backup is restored. One that was found never has the number of its name, see [`Machine::was_found`].
    pub(crate) fn after(&self, numbered: &Machine, taken: bool) -> Number {
        match (&self.found, taken) {
            (Some(_), true) => Number::None,
            (Some(_), false) if !numbered.was_found() => Number::Next,
            (None, true) => Number::Next,
            (_, false) => Number::Fits,
        }
    }

    pub(crate) fn numbered(&self, id: MachineId) -> Machine {
        let (name, instance, state) = match self.found.clone() {
            Some((name, instance)) => (name, Some(instance), MachineState::Starting),
            None => (format!("{}-{}", self.pool, id.0), None, MachineState::Asked),
        };
        let (asked, since, joined) = (self.by.at, self.by.at, None);
        Machine {
            id,
            pool: self.pool.clone(),
            name,
            instance,
            state,
            price: self.price,
            asked,
            since,
            joined,
        }
    }
}

impl MachineStep {
    /// Its reason made storable: what a provider said must not keep its failure from being recorded.
    pub(crate) fn checked(mut self) -> Result<Self> {
        check::storable(&mut self.why);
        self.instance.iter().try_for_each(|instance| check::name("instance", instance))?;
        check::signed(&self.by)?;
        Ok(self)
    }

    /// The machine after it.
    pub(crate) fn taken(&self, mut machine: Machine) -> Result<Machine> {
        if machine.state != self.from || machine.state.ended() {
            let (machine, expected, found) = (self.machine, self.from, machine.state);
            return Err(Error::MachineMoved { machine, expected, found });
        }
        machine.state = self.to;
        machine.since = self.by.at;
        if self.instance.is_some() {
            machine.instance.clone_from(&self.instance);
        }
        if self.to == MachineState::Joined {
            machine.joined = Some(self.by.at);
        }
        Ok(machine)
    }

    pub(crate) fn noted(&self, seq: u64, machine: &Machine) -> MachineChange {
        machine.noted(seq, Some(self.from), &self.why, &self.by)
    }
}

impl Machine {
    /// Whether it was found at its provider, so that nobody knows when it was asked for: another is named by its number.
    pub fn was_found(&self) -> bool {
        self.name.strip_prefix(&*self.pool).and_then(|rest| rest.strip_prefix('-'))
            != Some(&*self.id.0.to_string())
    }

    pub(crate) fn noted(
        &self,
        seq: u64,
        from: Option<MachineState>,
        why: &str,
        by: &Signed,
    ) -> MachineChange {
        MachineChange {
            seq,
            machine: self.id,
            pool: self.pool.clone(),
            name: self.name.clone(),
            from,
            to: self.state,
            why: why.to_owned(),
            who: by.who.clone(),
            at: by.at,
        }
    }
}
