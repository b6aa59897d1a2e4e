//! Machines that are rented, in memory.

use super::{MemStore, State};
use crate::check;
use crate::error::{Error, Result};
use crate::events::NewEvent;
use crate::machines::{
    MACHINE_CHANGES_KEPT, MACHINES_KEPT, Machine, MachineChange, MachineStep, Machines, NewMachine, Number,
    PoolStands,
};
use crate::records::{NewTransition, NodeState};
use async_trait::async_trait;
use modelless_types::{MachineId, PricePerHour};
use std::mem::take;

#[derive(Clone, Default)]
pub(super) struct Kept {
    machines: Vec<Machine>,
    /// Oldest first.
    changes: Vec<MachineChange>,
    pools: Vec<PoolStands>,
}

impl State {
    /// As what became of it, and as an event.
    fn note_machine(&mut self, change: MachineChange) {
        self.note(NewEvent::of_machine(&change));
        self.rented.changes.push(change);
        let over =
            self.rented.changes.len().saturating_sub(usize::try_from(MACHINE_CHANGES_KEPT).unwrap_or(0));
        self.rented.changes.drain(..over);
    }

    /// What a machine had in memory when it ended goes with it, and its node.
    fn end_machine(&mut self, name: &str, end: &MachineStep) {
        let Some(node) = self.nodes.iter_mut().find(|node| node.about.name == name) else { return };
        node.state = NodeState::Gone;
        let node = node.id;
        self.holders.remove(name);
        let lost = self.replicas.values().filter(|replica| replica.node == node);
        let lost: Vec<NewTransition> = lost.filter_map(|replica| replica.lost_with(end)).collect();
        for change in lost {
            let Ok(change) = check::transition(change) else { continue };
            let _ = self.move_replica(change);
        }
    }

    /// Forgets a machine's node, unless it is the last of its pool: that tells what the pool's hardware is.
    fn forget_machine(&mut self, name: &str) {
        let Some(node) = self.nodes.iter().find(|node| node.about.name == name) else { return };
        let last =
            self.nodes.iter().filter(|other| other.about.pool == node.about.pool).map(|of| of.id).max();
        let id = node.id;
        if node.state == NodeState::Gone && last != Some(id) {
            self.nodes.retain(|node| node.id != id);
            self.replicas.retain(|_, replica| replica.node != id);
        }
    }
}

#[async_trait]
impl Machines for MemStore {
    async fn add_machine(&self, new: NewMachine) -> Result<Option<Machine>> {
        let new = new.checked()?;
        self.write(|state| {
            let open = || state.rented.machines.iter().filter(|machine| !machine.state.ended());
            let in_pool = open().filter(|machine| machine.pool == new.pool).count();
            let spent = open().map(|machine| machine.price.0).sum();
            if !new.fits(u64::try_from(in_pool).unwrap_or(u64::MAX), spent) {
                return Ok(None);
            }
            let (id, machine) = loop {
                let id = state.next("machines");
                let machine = new.numbered(MachineId(id));
                let taken = state.rented.machines.iter().any(|known| known.name == machine.name);
                match new.after(&machine, taken) {
                    Number::Fits => break (id, machine),
                    Number::Next => {}
                    Number::None => return Ok(None),
                }
            };
            let stays = |known: &Machine| !known.state.ended() || known.id.0 + MACHINES_KEPT > id;
            let (stay, old): (_, Vec<Machine>) =
                take(&mut state.rented.machines).into_iter().partition(stays);
            state.rented.machines = stay;
            for machine in old {
                state.forget_machine(&machine.name);
            }
            let seq = state.next("machine_changes");
            state.note_machine(machine.noted(seq, None, &new.why, &new.by));
            state.rented.machines.push(machine.clone());
            Ok(Some(machine))
        })
    }

    async fn move_machine(&self, step: MachineStep) -> Result<Machine> {
        let step = step.checked()?;
        self.write(|state| {
            let known = state.rented.machines.iter_mut().find(|machine| machine.id == step.machine);
            let known = known.ok_or_else(|| Error::not_found("machine", step.machine))?;
            let moved = step.taken(known.clone())?;
            known.clone_from(&moved);
            if moved.state.ended() {
                state.end_machine(&moved.name, &step);
            }
            let seq = state.next("machine_changes");
            state.note_machine(step.noted(seq, &moved));
            Ok(moved)
        })
    }

    async fn price_machines(&self, pool: &str, price: PricePerHour) -> Result<()> {
        check::number("price", price.0)?;
        self.write(|state| {
            let of_pool = |known: &&mut Machine| known.pool == pool && !known.state.ended();
            state.rented.machines.iter_mut().filter(of_pool).for_each(|known| known.price = price);
            Ok(())
        })
    }

    async fn machines(&self) -> Result<Vec<Machine>> {
        self.read(|state| {
            state.rented.machines.iter().filter(|known| !known.state.ended()).cloned().collect()
        })
    }

    async fn ended_machines(&self, limit: u32) -> Result<Vec<Machine>> {
        self.read(|state| {
            let ended = state.rented.machines.iter().rev().filter(|machine| machine.state.ended());
            ended.take(usize::try_from(limit).unwrap_or(usize::MAX)).cloned().collect()
        })
    }

    async fn machine_named(&self, name: &str) -> Result<Option<Machine>> {
        self.read(|state| state.rented.machines.iter().find(|machine| machine.name == name).cloned())
    }

    async fn machine_changes(&self, machine: Option<MachineId>, limit: u32) -> Result<Vec<MachineChange>> {
        self.read(|state| {
            let all = state.rented.changes.iter().rev();
            let wanted = all.filter(|change| machine.is_none_or(|machine| change.machine == machine));
            wanted.take(usize::try_from(limit).unwrap_or(usize::MAX)).cloned().collect()
        })
    }

    async fn put_pools(&self, mut pools: Vec<PoolStands>) -> Result<()> {
        pools.iter().try_for_each(|pool| check::name("pool", &pool.name))?;
        pools.iter().try_for_each(|pool| check::json("pool", &pool.json))?;
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        self.write(|state| {
            state.rented.pools = pools;
            Ok(())
        })
    }

    async fn pools(&self) -> Result<Vec<PoolStands>> {
        self.read(|state| state.rented.pools.clone())
    }
}
