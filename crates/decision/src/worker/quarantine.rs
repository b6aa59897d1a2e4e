//! Members of crashed batches, each rerun alone, once, in a runner of its own.
//!
//! A crash says that somebody in the batch, or the model itself, takes its process down, but not who. So each member
//! is run alone in a *quarantine runner*, one at a time for each device, while the ordinary replica restarts and
//! serves the others. Who takes that runner down too is to blame, and is refused; the innocent are answered. A crash
//! that is pinned on an input this way is not held against the model.
//!
//! A quarantine runner's memory comes on top of the device's budget: one variant at a time, and only while somebody is
//! or waits to be in it.

use super::api::{Action, Failure, Outcome, Runner};
use super::machine::Worker;
use super::queue::Waiting;
use crate::estimate::Moments;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, QueryKey, Refusal, Time, VariantId};

/// At most this many wait for the quarantine runners of a node.
const LINE: usize = 256;

/// A death of a runner: which, and how many it died before.
type Death = (Runner, u64);

#[derive(Clone, Debug)]
struct Patient {
    waiting: Waiting,
    device: DeviceIx,
    variant: VariantId,
    death: Death,
    /// Nobody waits for it any longer.
    gone: bool,
}

impl Patient {
    fn key(&self) -> QueryKey {
        self.waiting.query.key
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Quarantine {
    line: Vec<Patient>,
    inside: BTreeMap<DeviceIx, Patient>,
    /// What each quarantine runner holds.
    holds: BTreeMap<DeviceIx, VariantId>,
    deaths: BTreeMap<Runner, u64>,
    /// Deaths that were pinned on an input; kept while a member of such a batch is here.
    blamed: BTreeSet<Death>,
}

impl Quarantine {
    /// Members who are still waited for.
    pub(super) fn open(&self) -> usize {
        self.line.len() + self.inside.values().filter(|patient| !patient.gone).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty() && self.inside.is_empty()
    }

    /// What the quarantine runners hold.
    pub(super) fn holds(&self) -> impl Iterator<Item = VariantId> {
        self.holds.values().copied()
    }

    pub(super) fn died(&mut self, runner: Runner) {
        *self.deaths.entry(runner).or_default() += 1;
    }

    pub(super) fn keep(&mut self, known: impl Fn(Runner) -> bool) {
        self.deaths.retain(|runner, _| known(*runner));
    }

    pub(super) fn cancel(&mut self, key: QueryKey) -> bool {
        let before = self.line.len();
        self.line.retain(|patient| patient.key() != key);
        let inside = self.inside.values_mut().find(|patient| patient.key() == key);
        let found = inside.map(|patient| patient.gone = true).is_some();
        found || self.line.len() < before
    }

    pub(super) fn next_expiry(&self) -> Option<Time> {
        let inside = self.inside.values().filter(|patient| !patient.gone);
        self.line.iter().chain(inside).map(|patient| patient.waiting.query.expires).min()
    }
}

impl Worker {
    /// A member of a batch that took its process down.
    pub(super) fn suspect(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        runner: Runner,
        waiting: Waiting,
    ) {
        let query = waiting.query;
        if query.expires <= now {
            self.refuse(query.key, Refusal::TooLate { waited: now - query.arrived });
        } else if self.quarantine.line.len() >= LINE {
            let limit = u32::try_from(LINE).unwrap_or(u32::MAX);
            self.refuse(query.key, Refusal::QueueFull { limit });
        } else {
            let death = (runner, self.quarantine.deaths.get(&runner).copied().unwrap_or_default());
            self.quarantine.line.push(Patient { waiting, device, variant, death, gone: false });
        }
    }

    /// Lets the next one into each quarantine runner that is free; ends those that nobody waits for.
    pub(super) fn advance_quarantine(&mut self) {
        for device in self.residency.device_ids() {
            if self.quarantine.inside.contains_key(&device) {
                continue;
            }
            let holds = self.quarantine.holds.get(&device).copied();
            // Who needs what is loaded goes first: a load takes longer than most runs.
            let order = |p: &Patient| (holds != Some(p.variant), p.waiting.query.expires, p.key());
            let here = self.quarantine.line.iter().enumerate().filter(|(_, p)| p.device == device);
            let next = here.min_by_key(|(_, p)| order(p)).map(|(at, _)| at);
            if let Some(at) = next {
                let patient = self.quarantine.line.remove(at);
                let (key, variant) = (patient.key(), patient.variant);
                let expected = self.residency.variant(variant).map_or(Moments::ZERO, |v| v.run.estimate(1));
                self.quarantine.holds.insert(device, variant);
                self.quarantine.inside.insert(device, patient);
                self.actions.push_back(Action::Quarantine { key, variant, device, expected });
            } else if self.quarantine.holds.remove(&device).is_some() {
                self.actions.push_back(Action::QuarantineOver { device });
            }
        }
        let (line, inside) = (&self.quarantine.line, &self.quarantine.inside);
        let here: BTreeSet<Death> = line.iter().chain(inside.values()).map(|p| p.death).collect();
        self.quarantine.blamed.retain(|death| here.contains(death));
    }

    /// What became of one in quarantine.
    pub(super) fn judged(&mut self, now: Time, key: QueryKey, outcome: Outcome) {
        let inside = self.quarantine.inside.iter().find(|(_, patient)| patient.key() == key);
        let Some(device) = inside.map(|(device, _)| *device) else { return };
        let Some(patient) = self.quarantine.inside.remove(&device) else { return };
        let refusal = match outcome {
            Outcome::Ran => None,
            Outcome::Failed { failure: Failure::Model, why } => Some(Refusal::ModelError { why }),
            Outcome::Failed { failure: Failure::Process, why } => {
                self.quarantine.holds.remove(&device);
                if self.quarantine.blamed.insert(patient.death) {
                    self.residency.pardon(now, patient.death.0);
                }
                Some(Refusal::InputCrashed { why })
            }
            Outcome::Failed { failure: Failure::NotStarted, why } => {
                self.quarantine.holds.remove(&device);
                let why = String::from("it could not be rerun after its batch had crashed: ") + &why;
                Some(Refusal::VariantFailed { why })
            }
        };
        match refusal {
            _ if patient.gone => {}
            None => self.actions.push_back(Action::Discharge { key }),
            Some(refusal) => self.refuse(key, refusal),
        }
    }

    /// Whoever is in quarantine or waits for it and whose time is up hears so.
    pub(super) fn expire_quarantine(&mut self, now: Time) {
        let over = |patient: &Patient| patient.waiting.query.expires <= now;
        let mut late: Vec<_> =
            self.quarantine.line.extract_if(.., |p| over(p)).map(|p| p.waiting.query).collect();
        for patient in self.quarantine.inside.values_mut().filter(|p| !p.gone && over(p)) {
            patient.gone = true;
            late.push(patient.waiting.query);
        }
        for query in late {
            self.refuse(query.key, Refusal::TooLate { waited: now - query.arrived });
        }
    }
}
