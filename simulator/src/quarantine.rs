//! A node's quarantine runners: one query at a time, alone.

use crate::Error;
use crate::check::ensure;
use crate::node::FromNode;
use crate::world::{Ev, World};
use modelless_decision::worker::{Event, Failure, Outcome};
use modelless_decision::{Moments, Rank};
use modelless_types::{DeviceIx, QueryKey, VariantId};
use std::collections::BTreeMap;
use std::rc::Rc;

impl Wards {
    /// What a device's holds.
    pub(crate) fn holds(&self, device: DeviceIx) -> Option<VariantId> {
        self.holds.get(&device).copied()
    }
}

/// The quarantine runners of a node.
#[derive(Default)]
pub(crate) struct Wards {
    inside: BTreeMap<DeviceIx, QueryKey>,
    holds: BTreeMap<DeviceIx, VariantId>,
    /// What gave a good answer that nobody has fetched yet.
    well: BTreeMap<QueryKey, VariantId>,
}

impl World<'_> {
    pub(crate) fn quarantine(
        &mut self,
        at: usize,
        device: DeviceIx,
        variant: VariantId,
        key: QueryKey,
    ) -> Result<(), Error> {
        let known = Rc::clone(&self.known);
        let Some(known) = known.on(at, variant) else { return Ok(()) };
        let wards = &mut self.nodes[at].wards;
        let before = wards.inside.insert(device, key);
        ensure(before.is_none(), self.now, "one at a time is in quarantine", || format!("{before:?}"))?;
        let there = wards.holds.insert(device, variant) == Some(variant);
        self.within_budget(at, device, &known.spec.name)?;
        let load = if there { Moments::ZERO } else { Moments::exactly(known.load_time) };
        let took = self.rng_runs.duration(load + known.run.uncorrected(1));
        let life = self.nodes[at].life;
        self.push(self.now + took, Rank::Completion, Ev::Judged { node: at, life, device });
        Ok(())
    }

    /// The run of the one in quarantine has come to its end.
    pub(crate) fn judged(&mut self, at: usize, device: DeviceIx) -> Result<(), Error> {
        let poison = |world: &Self, key| world.books.get(key).is_some_and(|client| client.poison);
        let Some(key) = self.nodes[at].wards.inside.remove(&device) else { return Ok(()) };
        let outcome = if poison(self, key) {
            self.crashes += 1;
            self.nodes[at].wards.holds.remove(&device);
            Outcome::Failed { failure: Failure::Process, why: "the process died".into() }
        } else {
            let wards = &mut self.nodes[at].wards;
            wards.holds.get(&device).map(|variant| wards.well.insert(key, *variant));
            Outcome::Ran
        };
        self.feed_worker(at, Event::Quarantined { key, outcome })?;
        self.nodes[at].wards.well.remove(&key);
        Ok(())
    }

    /// The answer of one that came well out of it.
    pub(crate) fn discharged(&mut self, at: usize, key: QueryKey) -> Result<FromNode, Error> {
        let variant = self.nodes[at].wards.well.remove(&key);
        ensure(variant.is_some(), self.now, "only who was in quarantine leaves it", || format!("{key}"))?;
        Ok(FromNode::Answer { key, variant: variant.expect("just checked") })
    }

    /// It is to end, which takes its time.
    pub(crate) fn quarantine_over(&mut self, at: usize, device: DeviceIx) {
        let life = self.nodes[at].life;
        let ended = self.now + self.scenario.nodes[at].unload;
        self.push(ended, Rank::Completion, Ev::QuarantineEnded { node: at, life, device });
    }

    pub(crate) fn quarantine_ended(&mut self, at: usize, device: DeviceIx) -> Result<(), Error> {
        self.nodes[at].wards.holds.remove(&device);
        self.feed_worker(at, Event::QuarantineEnded { device })
    }
}
