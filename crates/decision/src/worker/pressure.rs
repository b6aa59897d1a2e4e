//! Replicas under pressure: what is seen of each is put before [`replica::judge`], and what that says is done.

use super::api::WorkerVariant;
use super::bind::admits;
use super::machine::Worker;
use crate::query::Class;
use crate::replica::{self, Beside, Host, Limits, Signs};
use modelless_types::{DeviceIx, Micros, ReplicaState, Time, VariantId};

/// Below this factor over its profile nothing is slow, so nobody has to look closer.
const NOT_SLOW: f64 = 1.2;

/// What the machine told last stands for so long: it tells every second.
const KNOWN: Micros = Micros::from_secs(5);

/// What the machine does, and what of that is this node's doing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    beside: Option<Beside>,
    /// When that was told.
    told: Time,
    /// Core time that batches took since.
    own_us: u64,
}

impl Machine {
    /// A batch took so much core time.
    pub(super) fn ran(&mut self, core_us: u64) {
        self.own_us = self.own_us.saturating_add(core_us);
    }

    fn tell(&mut self, now: Time, host: Host, lanes: u16) {
        let since = (now - self.told).0.max(1);
        let ran = u32::try_from(self.own_us.saturating_mul(1_000) / since).unwrap_or(u32::MAX);
        // While others have the cores a batch takes longer than it computes, so the system knows better where it tells.
        let own_milli = host.own_milli.unwrap_or(ran).min(u32::from(host.cores) * 1_000);
        *self = Self { beside: Some(Beside { host, own_milli, lanes }), told: now, own_us: 0 };
    }

    /// Cores that others leave, in thousandths, while that is known.
    pub(super) fn left_milli(&self, now: Time) -> Option<u32> {
        let beside = self.beside.filter(|_| now - self.told <= KNOWN)?;
        Some((u32::from(beside.host.cores) * 1_000).saturating_sub(beside.others_milli()))
    }
}

impl Worker {
    /// What is seen of a replica, if it is known here.
    pub(super) fn signs(&self, now: Time, device: DeviceIx, variant: VariantId) -> Option<Signs> {
        let known = self.residency.variant(variant)?;
        let trouble = self.residency.trouble(device, variant)?;
        let since = |at: Option<Time>| at.map(|at| now - at);
        Some(Signs {
            alone: known.run.undisturbed(),
            live: known.run.correction,
            bound: self.rates.tightest(now, known),
            load: self.asked_of(now, device),
            late: since(trouble.late),
            slow: since(trouble.slow),
            unseen: since(trouble.ran),
            relapses: trouble.relapses,
            beside: self.host.beside,
        })
    }

    /// What is asked of a device, as a share of what it can do at the speed of the profiles.
    fn asked_of(&self, now: Time, device: DeviceIx) -> f64 {
        let lanes = self.lanes.iter().filter(|lane| lane.device == device).count();
        self.asked_in_lanes(now, device).0 / f64::from(u32::try_from(lanes).unwrap_or(u32::MAX).max(1))
    }

    /// The same in lanes that it keeps busy, and how many as fast as batches are now.
    pub(super) fn asked_in_lanes(&self, now: Time, device: DeviceIx) -> (f64, f64) {
        let each = |class: &Class| {
            let serving = || self.residency.serving(device).filter(|v| admits(class, v));
            let profiled =
                serving().map(|v| self.residency.batched(v).mean / v.run.ratio()).min_by(f64::total_cmp)?;
            let live = serving().map(|v| self.residency.batched(v).mean).min_by(f64::total_cmp)?;
            Some((profiled, live))
        };
        let asked = self.rates.now(now).filter_map(|(class, per_us)| Some((per_us, each(class)?)));
        asked.fold((0.0, 0.0), |(profiled, live), (per_us, each)| {
            (profiled + per_us * each.0, live + per_us * each.1)
        })
    }

    /// A batch was bound, and what waits behind it cannot be in time.
    pub(super) fn note_late(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        self.residency.note(device, variant, |trouble| trouble.late = Some(now));
        self.judge(now, device, variant);
    }

    /// A batch ended.
    pub(super) fn note_ran(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        self.residency.note(device, variant, |trouble| trouble.ran = Some(now));
        let slow = |known: &WorkerVariant| known.run.correction.ratio >= NOT_SLOW;
        let may_be_slow = self.residency.variant(variant).is_some_and(slow);
        if may_be_slow || self.residency.state(device, variant) == ReplicaState::Interfered {
            self.judge(now, device, variant);
        }
    }

    /// Those in trouble whose time has come.
    pub(super) fn judge_due(&mut self, now: Time) {
        for (device, variant) in self.residency.troubled(now) {
            self.judge(now, device, variant);
        }
    }

    /// The machine's system told what it does.
    pub(super) fn note_host(&mut self, now: Time, host: Host) {
        let cores = |device: DeviceIx| {
            let lanes = self.lanes.iter().filter(|lane| lane.device == device).count();
            usize::from(self.residency.cut(device).width.max(1)) * lanes
        };
        let lanes = self.residency.device_ids().map(cores).sum::<usize>();
        self.host.tell(now, host, u16::try_from(lanes).unwrap_or(u16::MAX));
        for (device, variant) in self.residency.troubled(Time::FAR) {
            self.judge(now, device, variant);
        }
    }

    /// Nothing of it is run, and what was seen of it last still stands: see [`Signs::still_stands`].
    pub(super) fn still_stands(&self, now: Time, variant: VariantId) -> bool {
        let held = |device| {
            self.residency.state(device, variant) == ReplicaState::Interfered
                && self.signs(now, device, variant).is_some_and(|signs| signs.still_stands())
        };
        self.residency.device_ids().any(held)
    }

    fn judge(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        loop {
            let state = self.residency.state(device, variant);
            if !state.serves() {
                return;
            }
            let Some(mut signs) = self.signs(now, device, variant) else { return };
            let limits = Limits::of(&signs);
            // Only what is run says that it is slow; what fades says nothing.
            if signs.live.ratio >= limits.well && signs.unseen.is_some_and(|unseen| unseen.0 == 0) {
                self.residency.note(device, variant, |trouble| trouble.slow = Some(now));
                signs.slow = Some(Micros::ZERO);
            }
            let Some(event) = replica::judge(state, &signs) else {
                return self.residency.look_again(device, variant, now + limits.calm);
            };
            let because = replica::because(state, event, &signs);
            let place = (device, variant);
            self.residency.turn(now, place, event, limits.calm, &because, &mut self.actions);
        }
    }
}
