//! Members of crashed batches, each rerun alone, once, in a runner of its own.
//!
//! A crash says that somebody in the batch, or the model itself, takes its process down, but not who. So each member
//! is run alone in a *quarantine runner*, one at a time for each device, while the ordinary replica restarts and
//! serves the others. Who takes that runner down too is to blame, and is refused; the innocent are answered. A crash
//! that is pinned on an input this way is not held against the model, as long as the model runs others well: see `trust`.
//! Where so many crash alone in a row that the model would be given up for it, the rest is refused without being tried.
//!
//! What found no memory beside another batch of its process is run here, too: whatever it lacks then was its own.
//! What hung is tried here, before it may have a lane again: by one query at a time, of those that wait for it.
//!
//! A quarantine runner's memory is part of the device's budget: one variant at a time, and only while somebody is or
//! waits to be in it. From the crash until then its room is kept free of other loads; where it can never be had, because
//! the plan pins too much besides, the members are refused with that. What waits is bounded in number and in bytes.

use super::api::{Action, Failure, Outcome, Runner, WorkerVariant};
use super::bind::admits;
use super::machine::Worker;
use super::needs::Needs;
use super::queue::{Came, Waiting};
use super::residency::{Claim, Room};
use super::trust::Trust;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Bytes, DeviceIx, QueryKey, Refusal, ReplicaState, Time, VariantId};

/// At most this many wait for the quarantine runners of a node.
const LINE: usize = 256;

/// At most this many of a variant wait there because they found no memory beside others: about as many as a large node has lanes, which
/// one of them may have left without. What follows is run one at a time.
const STARVED: usize = 64;

const HOPELESS: &str = "whatever it was given lately took its process down";

const NOT_RERUN: &str = "it could not be rerun after its batch had crashed: ";

/// A death of a runner: which, and how many it died before.
type Death = (Runner, u64);

#[derive(Clone, Debug)]
struct Patient {
    waiting: Waiting,
    device: DeviceIx,
    variant: VariantId,
    /// `None`: no process died for it. It tries what hung, or found no memory beside others.
    death: Option<Death>,
    /// When it came into the line.
    since: Time,
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
    /// Those that are ending; nobody is let in meanwhile.
    ending: BTreeSet<DeviceIx>,
    deaths: BTreeMap<Runner, u64>,
    /// Deaths that were pinned on an input; kept while a member of such a batch is here.
    blamed: BTreeSet<Death>,
    trust: Trust,
}

impl Quarantine {
    /// Members who are still waited for.
    pub(super) fn open(&self) -> usize {
        self.line.len() + self.inside.values().filter(|patient| !patient.gone).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty() && self.inside.is_empty()
    }

    /// Decoded bytes of those who wait.
    fn bytes(&self) -> Bytes {
        Bytes(self.line.iter().map(|patient| patient.waiting.query.bytes.0).sum())
    }

    pub(super) fn died(&mut self, runner: Runner) {
        *self.deaths.entry(runner).or_default() += 1;
    }

    pub(super) fn keep<'a>(&mut self, known: impl Iterator<Item = &'a WorkerVariant>) {
        let (ids, runners): (BTreeSet<VariantId>, BTreeSet<Runner>) =
            known.map(|v| (v.id, v.runner())).unzip();
        self.deaths.retain(|runner, _| runners.contains(runner));
        self.trust.keep(|variant| ids.contains(&variant));
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
        let death = (runner, self.quarantine.deaths.get(&runner).copied().unwrap_or_default());
        self.stand_in_line(now, device, variant, waiting, Some(death));
    }

    /// One that found no memory beside another batch of its process, if not many do: then it is told so.
    pub(super) fn try_apart(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        waiting: Waiting,
        why: &str,
    ) {
        let here = self.quarantine.line.iter().chain(self.quarantine.inside.values());
        if here.filter(|p| p.variant == variant && p.death.is_none()).count() >= STARVED {
            self.refuse(waiting.query.key, Refusal::ModelError { why: String::from(why) });
        } else {
            self.stand_in_line(now, device, variant, waiting, None);
        }
    }

    fn stand_in_line(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        waiting: Waiting,
        death: Option<Death>,
    ) {
        let query = waiting.query;
        if query.expires <= now {
            self.refuse(query.key, Refusal::TooLate { waited: now - query.arrived });
        } else if self.quarantine.trust.hopeless(variant, self.config.give_up_after) {
            self.refuse(query.key, Refusal::VariantFailed { why: String::from(HOPELESS) });
        } else if self.quarantine.line.len() >= LINE {
            let limit = u32::try_from(LINE).unwrap_or(u32::MAX);
            self.refuse(query.key, Refusal::QueueFull { limit });
        } else if self.quarantine.bytes() + query.bytes > self.config.queue_bytes
            && !self.quarantine.line.is_empty()
        {
            self.refuse(query.key, Refusal::BytesFull { limit: self.config.queue_bytes });
        } else {
            self.quarantine.line.push(Patient { waiting, device, variant, death, since: now, gone: false });
        }
    }

    /// Has what hung tried by the first query that nothing else can answer: one at a time, in quarantine, where it keeps no
    /// lane from others.
    pub(super) fn try_alone(&mut self, now: Time) {
        for (device, variant) in self.residency.to_be_tried(now) {
            let here = self.quarantine.line.iter().chain(self.quarantine.inside.values());
            if here.into_iter().any(|p| (p.device, p.variant) == (device, variant)) {
                continue;
            }
            let Some(known) = self.residency.variant(variant) else { continue };
            // What the plan wants back need not wait until nothing else serves.
            let pinned = self.residency.pinned(device, variant);
            let first = |servable| {
                let theirs = |class: &Class| admits(class, known) && self.servable(class) == servable;
                let mut here = self.queue.merged(theirs).filter(|waiting| waiting.came != Came::Announced);
                here.next().map(|waiting| waiting.query.key)
            };
            let Some(key) = first(false).or_else(|| if pinned { first(true) } else { None }) else {
                continue;
            };
            let Some(waiting) = self.queue.remove(key) else { continue };
            let patient = Patient { waiting, device, variant, death: None, since: now, gone: false };
            self.quarantine.line.push(patient);
        }
    }

    /// Lets the next one into each quarantine runner that is free and has room; ends those that nobody waits for.
    pub(super) fn advance_quarantine(&mut self, now: Time) {
        for device in self.residency.device_ids() {
            self.residency.claim(device, None);
            if self.quarantine.inside.contains_key(&device) || self.quarantine.ending.contains(&device) {
                continue;
            }
            while let Some(at) = self.next_patient(device) {
                let Patient { variant, since, .. } = self.quarantine.line[at];
                match self.room_in_ward(now, device, Claim { variant, since }) {
                    Room::Made => {
                        self.let_in(device, at);
                        break;
                    }
                    Room::Later => {
                        self.residency.claim(device, Some(Claim { variant, since }));
                        break;
                    }
                    Room::Never => {
                        let key = self.quarantine.line.remove(at).key();
                        self.refuse(key, Refusal::VariantFailed { why: self.no_room(device, variant) });
                    }
                }
            }
            if self.quarantine.inside.contains_key(&device) || self.next_patient(device).is_some() {
                continue;
            }
            // What was in a runner that is known to be dead is about to stand in the line.
            let claim = self.dying(device).map(|variant| Claim { variant, since: Time::ZERO });
            self.residency.claim(device, claim);
            if claim.is_none() && self.quarantine.holds.remove(&device).is_some() {
                self.quarantine.ending.insert(device);
                self.actions.push_back(Action::QuarantineOver { device });
            }
        }
        let (line, inside) = (&self.quarantine.line, &self.quarantine.inside);
        let here: BTreeSet<Death> = line.iter().chain(inside.values()).filter_map(|p| p.death).collect();
        self.quarantine.blamed.retain(|death| here.contains(death));
    }

    /// Who is let in next. Whose process died goes before who only lacked memory. Then who needs what is loaded: a load takes longer than
    /// most runs.
    fn next_patient(&self, device: DeviceIx) -> Option<usize> {
        let holds = self.quarantine.holds.get(&device).copied();
        let order =
            |p: &Patient| (p.death.is_none(), holds != Some(p.variant), p.waiting.query.expires, p.key());
        let here = self.quarantine.line.iter().enumerate().filter(|(_, p)| p.device == device);
        here.min_by_key(|(_, p)| order(p)).map(|(at, _)| at)
    }

    fn room_in_ward(&mut self, now: Time, device: DeviceIx, claim: Claim) -> Room {
        if self.residency.variant(claim.variant).is_none() {
            return Room::Never;
        }
        if self.quarantine.holds.get(&device) == Some(&claim.variant) {
            return Room::Made;
        }
        let needs = Needs { queue: &self.queue, rates: &self.rates, now };
        self.residency.ward_room(now, device, claim, needs, &mut self.actions)
    }

    /// Why a variant never comes into the device's quarantine runner.
    fn no_room(&self, device: DeviceIx, variant: VariantId) -> String {
        if self.residency.variant(variant).is_none() {
            return String::from(NOT_RERUN) + "its variant is not registered any longer";
        }
        let (needs, budget) = self.residency.ward_budget(device, variant);
        format!(
            "{NOT_RERUN}it would take {needs} of memory, and beside what the plan pins there are {budget}"
        )
    }

    fn let_in(&mut self, device: DeviceIx, at: usize) {
        let patient = self.quarantine.line.remove(at);
        let (key, variant) = (patient.key(), patient.variant);
        let expected = self.residency.variant(variant).map_or(Moments::ZERO, |v| v.run.estimate(1));
        self.quarantine.holds.insert(device, variant);
        self.quarantine.inside.insert(device, patient);
        self.actions.push_back(Action::Quarantine { key, variant, device, expected });
    }

    /// The variant of a batch whose runner died and whose end is yet to be told: its members are rerun.
    fn dying(&self, device: DeviceIx) -> Option<VariantId> {
        let running = self.all_lanes().filter(|lane| lane.device == device);
        let mut running = running.filter_map(|lane| lane.running.as_ref());
        let lives = |state: ReplicaState| state.serves() || state == ReplicaState::Draining;
        let known = |variant| self.residency.variant(variant).is_some();
        let dead =
            running.find(|batch| known(batch.variant) && !lives(self.residency.state(device, batch.variant)));
        dead.map(|batch| batch.variant)
    }

    /// A quarantine runner is out of memory.
    pub(super) fn quarantine_ended(&mut self, device: DeviceIx) {
        if self.quarantine.ending.remove(&device) {
            self.residency.ward_left(device);
        }
    }

    /// A quarantine runner died, or never came up.
    fn ward_lost(&mut self, device: DeviceIx) {
        self.quarantine.holds.remove(&device);
        self.residency.ward_left(device);
    }

    /// What became of one in quarantine.
    pub(super) fn judged(&mut self, now: Time, key: QueryKey, outcome: Outcome) {
        let inside = self.quarantine.inside.iter().find(|(_, patient)| patient.key() == key);
        let Some(device) = inside.map(|(device, _)| *device) else { return };
        let Some(patient) = self.quarantine.inside.remove(&device) else { return };
        let refusal = match outcome {
            Outcome::Ran => {
                self.vouch(now, patient.variant);
                self.residency.proven(now, device, patient.variant);
                None
            }
            Outcome::Revoked => {
                Some(Refusal::VariantFailed { why: String::from(NOT_RERUN) + "it was taken back" })
            }
            Outcome::Failed { failure: Failure::Model | Failure::Memory, why } => {
                self.residency.proven(now, device, patient.variant);
                Some(Refusal::ModelError { why })
            }
            Outcome::Failed { failure: Failure::Process | Failure::Hung, why } => {
                self.ward_lost(device);
                self.blame(now, &patient, &why);
                Some(Refusal::InputCrashed { why })
            }
            Outcome::Failed { failure: Failure::Unreachable, why } => {
                Some(Refusal::VariantFailed { why: String::from(NOT_RERUN) + &why })
            }
            Outcome::Failed { failure: Failure::NotStarted, why } => {
                self.ward_lost(device);
                if patient.death.is_none() {
                    self.residency.still_fails(now, device, patient.variant, &why);
                }
                Some(Refusal::VariantFailed { why: String::from(NOT_RERUN) + &why })
            }
        };
        match refusal {
            _ if patient.gone => {}
            None => self.actions.push_back(Action::Discharge { key }),
            Some(refusal) => self.refuse(key, refusal),
        }
    }

    /// Something of a variant ran to its end: what was pinned on inputs meanwhile was theirs.
    pub(super) fn vouch(&mut self, now: Time, variant: VariantId) {
        let owed = self.quarantine.trust.ran_well(variant);
        if let Some(runner) = self.residency.variant(variant).map(WorkerVariant::runner)
            && owed > 0
        {
            self.residency.pardon(now, runner, owed);
        }
    }

    /// One crashed alone.
    fn blame(&mut self, now: Time, patient: &Patient, why: &str) {
        let trust = &mut self.quarantine.trust;
        trust.crashed_alone(patient.variant);
        match patient.death {
            // Of one death one member is to blame, for all that is known.
            Some(death) => {
                if self.quarantine.blamed.insert(death) && trust.pinned(patient.variant) {
                    self.residency.pardon(now, death.0, 1);
                }
            }
            None => self.residency.still_fails(now, patient.device, patient.variant, why),
        }
        if self.quarantine.trust.hopeless(patient.variant, self.config.give_up_after) {
            let theirs = |other: &mut Patient| other.variant == patient.variant;
            let rest: Vec<QueryKey> =
                self.quarantine.line.extract_if(.., theirs).map(|other| other.key()).collect();
            for key in rest {
                self.refuse(key, Refusal::VariantFailed { why: String::from(HOPELESS) });
            }
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
