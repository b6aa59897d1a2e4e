//! A node's memory: loads and unloads take their time, and what a dead process held is void.

use crate::Error;
use crate::check::ensure;
use crate::node::{Memory, Resident};
use crate::world::{Ev, World};
use modelless_decision::worker::Event;
use modelless_decision::{Moments, Rank};
use modelless_types::{Bytes, DeviceIx, Micros, VariantId};
use std::rc::Rc;

impl World<'_> {
    pub(crate) fn load(&mut self, at: usize, device: DeviceIx, variant: VariantId) -> Result<(), Error> {
        let known = Rc::clone(&self.known);
        let Some(known) = known.on(at, variant) else { return Ok(()) };
        let node_spec = &self.scenario.nodes[at];
        let node = &mut self.nodes[at];
        let load = node.next_load;
        node.next_load += 1;
        let before = node
            .memory
            .insert((device, variant), Resident { state: Memory::Loading, bytes: known.memory, load });
        ensure(before.is_none(), self.now, "what is in memory is not loaded again", || {
            known.spec.name.clone()
        })?;
        let life = node.life;
        self.within_budget(at, device, &known.spec.name)?;
        self.loads += 1;
        let mean = Moments::exactly(known.load_time);
        let sd = mean.mean * node_spec.load_scatter;
        let took = self.rng_runs.duration(Moments { var: sd * sd, ..mean });
        let failed = self.rng_faults.chance(node_spec.load_failure);
        let event = Ev::Loaded { node: at, life, device, variant, load, took, failed };
        self.push(self.now + took, Rank::Completion, event);
        Ok(())
    }

    /// Replicas and what is in quarantine fit into the device together.
    pub(crate) fn within_budget(&self, at: usize, device: DeviceIx, with: &str) -> Result<(), Error> {
        let node = &self.nodes[at];
        let replicas = node.memory.iter().filter(|((d, _), _)| *d == device).map(|(_, m)| m.bytes.0);
        let ward = node.wards.holds(device).and_then(|inside| self.known.on(at, inside));
        let used = replicas.sum::<u64>() + ward.map_or(0, |v| v.memory.0);
        let budget = self.scenario.nodes[at].worker.devices[usize::from(device.0)].memory;
        Ok(ensure(used <= budget.0, self.now, "the memory budget is kept", || {
            format!("{} of {budget} with {with}", Bytes(used))
        })?)
    }

    pub(crate) fn loaded(
        &mut self,
        at: usize,
        (device, variant): (DeviceIx, VariantId),
        load: u64,
        took: Micros,
        failed: bool,
    ) -> Result<(), Error> {
        let node = &mut self.nodes[at];
        let Some(resident) = node.memory.get_mut(&(device, variant)).filter(|m| m.load == load) else {
            return Ok(());
        };
        if failed {
            node.memory.remove(&(device, variant));
            self.load_failures += 1;
            let why = "it would not load".into();
            return self.feed_worker(at, Event::LoadFailed { device, variant, why });
        }
        resident.state = Memory::Loaded;
        let memory = resident.bytes;
        self.feed_worker(at, Event::Loaded { device, variant, memory, took })
    }

    pub(crate) fn unload(&mut self, at: usize, device: DeviceIx, variant: VariantId) -> Result<(), Error> {
        let node = &mut self.nodes[at];
        let used = node.batches.values().any(|b| b.device == device && b.variant == variant && !b.ended);
        ensure(!used, self.now, "nothing is unloaded while it runs", || format!("{variant}"))?;
        let load = match node.memory.get_mut(&(device, variant)) {
            Some(resident) => {
                ensure(
                    resident.state == Memory::Loaded,
                    self.now,
                    "only what is loaded is unloaded",
                    || format!("{variant} is {:?}", resident.state),
                )?;
                resident.state = Memory::Unloading;
                resident.load
            }
            None => u64::MAX, // its process died first; it is as good as unloaded
        };
        self.unloads += 1;
        let life = node.life;
        let at_time = self.now + self.scenario.nodes[at].unload;
        self.push(at_time, Rank::Completion, Ev::Unloaded { node: at, life, device, variant, load });
        Ok(())
    }

    pub(crate) fn unloaded(
        &mut self,
        at: usize,
        (device, variant): (DeviceIx, VariantId),
        load: u64,
    ) -> Result<(), Error> {
        let node = &mut self.nodes[at];
        match node.memory.get(&(device, variant)) {
            Some(resident) if resident.load == load => {
                node.memory.remove(&(device, variant));
            }
            None if load == u64::MAX => {}
            Some(_) | None => return Ok(()), // told already, when its process died
        }
        self.feed_worker(at, Event::Unloaded { device, variant })
    }
}
