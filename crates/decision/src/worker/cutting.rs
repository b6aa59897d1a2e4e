//! Cutting a device's cores into lanes.
//!
//! A device has a number of cores, cut into lanes of equal width. A variant runs on lanes that have at least as many
//! cores as it has threads. Narrow lanes do more together, wide ones do one thing sooner. A cut is changed when every
//! lane of the device is empty: batches that run end, those that were only bound go back to the queue, nothing new is
//! bound meanwhile.
//!
//! Left alone, the worker keeps the cut it was given. It widens for a query whose goals only a wider lane can meet, if
//! what comes could be served that way too, and goes back when nobody has needed that for a while or the wide lanes
//! cannot keep up. Between two changes some time passes.

use super::api::{Action, Failure, LaneIx};
use super::bind::admits;
use super::lanes::Lane;
use super::machine::Worker;
use crate::estimate::Moments;
use crate::query::{Class, Query};
use crate::worker::WorkerVariant;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Micros, Time, VariantId};

/// The least time between two changes of the worker's own.
const DWELL: Micros = Micros::from_secs(2);
/// So long after the last query that needed them wide lanes are given up.
const UNNEEDED: Micros = Micros::from_secs(5);
/// Wide lanes are not taken if they would be busier than this, and given up above the second.
const ROOM: f64 = 0.7;
const FULL: f64 = 0.9;

/// How a device's cores are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    cores: u16,
    /// As it was set; where the worker returns to.
    base: u16,
    pub(super) width: u16,
    /// The width it is being changed to.
    pub(super) next: Option<u16>,
    /// Not changed by the worker itself before this.
    settled: Time,
    /// A query last needed more than the base width.
    needed: Time,
    /// Until every lane is empty, if nothing more is bound.
    pub(super) empty_in: Micros,
}

impl Cut {
    pub(super) fn new(lanes: u16, width: u16) -> Self {
        let (lanes, width) = (lanes.max(1), width.max(1));
        Self {
            cores: lanes.saturating_mul(width),
            base: width,
            width,
            next: None,
            settled: Time::ZERO,
            needed: Time::ZERO,
            empty_in: Micros::ZERO,
        }
    }

    /// The width that a variant needs here: its threads, or all there is.
    pub(super) fn needs(self, variant: &WorkerVariant) -> u16 {
        variant.threads.clamp(1, self.cores)
    }

    /// The width of the lane that a variant runs on: as lanes are or are about to be, or as wide as it needs.
    pub(super) fn serves_at(self, variant: &WorkerVariant) -> u16 {
        self.needs(variant).max(self.next.unwrap_or(self.width))
    }

    /// Lanes at a width.
    pub(super) fn lanes(self, width: u16) -> u16 {
        (self.cores / width.max(1)).max(1)
    }

    /// Until lanes could be wider.
    pub(super) fn wider_in(self, now: Time) -> Micros {
        (self.settled - now) + self.empty_in.max(Micros(1))
    }
}

impl Worker {
    /// How many lanes a device has, and how many cores each.
    pub fn lanes_of(&self, device: DeviceIx) -> (u16, u16) {
        let cut = self.residency.cut(device);
        (cut.lanes(cut.width), cut.width)
    }

    /// The device is to be cut otherwise, from outside: that is where it returns to from now on.
    pub(super) fn recut(&mut self, now: Time, device: DeviceIx, width: u16) {
        if usize::from(device.0) >= self.config.devices.len() {
            return;
        }
        let cut = self.residency.cut_mut(device);
        cut.base = width.clamp(1, cut.cores);
        let base = cut.base;
        self.change(now, device, base);
    }

    fn change(&mut self, now: Time, device: DeviceIx, width: u16) {
        let cut = self.residency.cut_mut(device);
        cut.next = (width != cut.width).then_some(width);
        cut.settled = now + DWELL;
        if cut.next.is_none() {
            return;
        }
        for at in 0..self.lanes.len() {
            if self.lanes[at].device != device {
                continue;
            }
            let Some(batch) = self.lanes[at].unbind(|_| true) else { continue };
            self.actions.extend(batch.discard());
            self.residency.released(now, device, batch.variant, &mut self.actions);
            self.rerun(now, device, &batch, Failure::NotStarted, "its lane was cut otherwise before it ran");
        }
    }

    /// Opens the new lanes of devices whose old ones are empty. Where one does not become empty, because what it runs is far too late, lanes
    /// that queries asked for are given up for now: meanwhile nothing would run on any of them.
    pub(super) fn open_lanes(&mut self, now: Time) {
        for device in self.residency.device_ids() {
            let cut = self.residency.cut(device);
            let by_hand = cut.width < cut.base && cut.next == Some(cut.base);
            if cut.next.is_some() && !by_hand && self.is_held_up(now, device) {
                let cut = self.residency.cut_mut(device);
                (cut.next, cut.settled) = (None, now + DWELL);
                self.residency.changes += 1; // who waits for wider lanes is placed anew
                continue;
            }
            let lanes = self.lanes.iter().filter(|lane| lane.device == device);
            let left = lanes.clone().map(|lane| lane.until_free(self.now).mean).fold(0.0, f64::max);
            // What is on its way to a server holds no lane, but has its lane's number until it has begun.
            let mut ways = self.ways.iter().filter(|way| way.device == device);
            let begun = ways.all(|way| way.next.as_ref().is_none_or(|next| next.started.is_some()));
            let empty = begun && lanes.chain(self.suspects_on(device)).all(Lane::is_empty);
            let cut = self.residency.cut_mut(device);
            cut.empty_in = Moments { mean: left, var: 0.0 }.mean();
            let Some(width) = cut.next.filter(|_| empty) else { continue };
            cut.next = None;
            cut.width = width;
            let lanes = cut.lanes(width);
            self.residency.changes += 1;
            self.lanes.retain(|lane| lane.device != device);
            let open = self.open_of(lanes, width);
            self.lanes.extend((0..open).map(|lane| Lane::new(device, LaneIx(lane))));
            self.actions.push_back(Action::Recut { device, width, lanes });
        }
    }

    /// Whether something on a device has run far too long.
    fn is_held_up(&self, now: Time, device: DeviceIx) -> bool {
        let mut lanes = self.lanes.iter().filter(|lane| lane.device == device);
        let mut suspects = self.suspects_on(device);
        suspects.any(|suspect| !suspect.is_empty())
            || lanes.any(|lane| self.overdue(lane).is_some_and(|at| at <= now))
    }

    /// Somebody needs a variant that runs on wider lanes only.
    pub(super) fn ask_wider(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        let Some(needs) = self.residency.variant(variant).map(|v| self.residency.cut(device).needs(v)) else {
            return;
        };
        let cut = self.residency.cut(device);
        if needs <= cut.width || needs <= cut.next.unwrap_or(0) {
            return;
        }
        // What hangs would keep the new lanes from being opened, and would have them given up again.
        if cut.settled > now || self.load_of(device, needs) > ROOM || self.is_held_up(now, device) {
            return;
        }
        self.residency.cut_mut(device).needed = now;
        self.change(now, device, needs);
    }

    /// A query came: notes whether it is one for which lanes are as wide as they are.
    pub(super) fn note_width(&mut self, now: Time, query: &Query) {
        let slack = Moments::exactly(query.expires - now).mean;
        for device in self.residency.device_ids() {
            let cut = self.residency.cut(device);
            if cut.width > cut.base {
                let fits = |v: &&WorkerVariant| admits(&query.class, v) && cut.needs(v) <= cut.base;
                let mut narrow = self.residency.resident(device).filter(fits);
                let in_time = |v: &WorkerVariant| query.best_effort || v.run.estimate(1).within(slack);
                let enough = narrow.any(in_time);
                drop(narrow);
                if !enough {
                    self.residency.cut_mut(device).needed = now;
                }
            }
        }
    }

    /// Gives wide lanes up that nobody needs or that cannot keep up.
    pub(super) fn reconsider_cuts(&mut self, now: Time) {
        let devices: Vec<DeviceIx> = self.residency.device_ids().collect();
        for device in devices {
            let cut = self.residency.cut(device);
            if cut.width <= cut.base || cut.next.is_some() || now < cut.settled {
                continue;
            }
            let unneeded = now - cut.needed >= UNNEEDED;
            let full = self.load_of(device, cut.width) > FULL;
            if unneeded || (full && self.load_of(device, cut.base) < self.load_of(device, cut.width)) {
                self.change(now, device, cut.base);
            }
        }
    }

    /// When to look at it again though nothing happens.
    pub(super) fn next_reconsideration(&self) -> Option<Time> {
        let wide = self.residency.device_ids().map(|device| self.residency.cut(device));
        let wide = wide.filter(|cut| cut.width > cut.base && cut.next.is_none());
        wide.map(|cut| (cut.needed + UNNEEDED).max(cut.settled)).min()
    }

    /// How busy lanes of a width would be with what comes, each class at its quickest.
    fn load_of(&self, device: DeviceIx, width: u16) -> f64 {
        let cut = self.residency.cut(device);
        let lanes = f64::from(cut.lanes(width));
        let each = |class: &Class| {
            let fits = self.residency.resident(device).filter(|v| cut.needs(v) <= width && admits(class, v));
            fits.map(|v| self.residency.batched(v).mean).min_by(f64::total_cmp)
        };
        let load = |(class, per_us): (&Class, f64)| each(class).map_or(0.0, |each| per_us * each);
        self.rates.now(self.now).map(load).sum::<f64>() / lanes
    }
}
