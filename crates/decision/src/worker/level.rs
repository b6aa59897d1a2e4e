//! Which variants a device can afford for each class, before single queries are looked at.
//!
//! The look ahead of a choice (`ahead`) asks whether an accurate batch now leaves time to be quick afterwards. Asked again and again it
//! says yes until there is none left: a device that is to be nine tenths busy with its cheapest variants then lives at the brink, in batches
//! that are small because their first are nearly late, and misses what it could have answered. So how accurate answers may be in the long run is
//! decided by rates: each class gets the most accurate variant with which the device could keep all its classes going, each in batches
//! that leave again after a part of their bound. The look ahead may still choose a cheaper one, and a dearer one only for who can have none of those.
//!
//! It first finds what takes the least of the device, where classes that share a variant share its batches as well, and then makes classes more
//! accurate one step at a time, whichever gains most answers' accuracy for the time it takes, while there is room. Floors are not touched: a
//! class knows only variants that may answer it.
//!
//! A device that would be busy for less than half of its time in batches as full as pay and bounds allow is *quiet*: batches grow when it is needed, so
//! there is always something to fall back to, the look ahead sees to the rest, and no class is kept from anything. How much is kept in reserve follows the same figure.
//!
//! A device that could not keep up with batches of what comes to itself looks again with batches as they come to gateways, which go whole to one node each
//! in turn. If that is too much as well it is *pressed* (`pressed`), and looks a third time: who is answered then has waited nearly all of his bound, so batches
//! are larger, and what takes least in them may be another variant.

use super::ahead::{LATELY, whole};
use super::api::WorkerVariant;
use super::bind::admits;
use super::flow::Flow;
use super::machine::Worker;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use modelless_types::{Batching, DeviceIx, Micros, Time, VariantId};

/// A batch of a class leaves after this part of its bound: as long again is for its run, and for what runs before it.
const PERIOD: f64 = 0.5;
/// The same on a pressed device. With 0.75 of it half as much is gained, and with twice it no more (ADR 0225).
const PRESSED_PERIOD: f64 = 1.0;
/// A batch that takes more than this part of the tightest bound that is asked within holds up whoever is asked within it. Of its own bound it takes no more either
/// where a device is to be called quiet.
const LONGEST: f64 = 0.5;
/// Classes may be given variants that would keep a device busier than it can be by this part of what it has left with the cheapest: the look ahead
/// falls back to those wherever there is no time, and more is answered accurately than if all that is accurate had to fit at once. A device that is busy with
/// its cheapest has nothing to fall back to. Of 36 simulated rows at 0.3, 0.6 and 0.9 (one seed) 2.41 % in place of 2.40 are missed and answers are 0.14, 0.09 and
/// 0.05 points more accurate; 0.4 gives 0.11, 0.04 and 0.00.
const OVER: f64 = 0.7;
/// On a device that is busy for less than this part of its time few are held up, and the look ahead sees to them.
const BUSY: f64 = 0.5;
/// A device is quiet below this part of its time in batches as full as pay. With 0.4 or 0.7 more are missed and answers are less or hardly more accurate (ADR 0224).
const QUIET: f64 = 0.5;
/// Nothing is kept in reserve up to the first of these parts of a device's time in such batches, and everything from the second on: who is answered at the last
/// moment is missed by every chance, but where little is asked chance has nothing to build up on.
const RESERVED: (f64, f64) = (0.3, 0.7);
/// What is asked changes no faster than a person would notice, and this is asked on the path of queries.
const EVERY: Micros = Micros::from_millis(10);
/// Those classes that are asked most; the others may have anything, and are few.
const CLASSES: usize = 16;
/// Who is asked for so much of what he can do at the least can keep up only with larger batches, if at all. More than all of it, since batches that wait grow.
const PRESSED: f64 = 1.1;
/// A change that gains less is none.
const NOTHING: f64 = 1e-9;

/// What a device cannot afford for now, by class.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    beyond: BTreeMap<Class, Vec<VariantId>>,
    /// What each is answered by while more is asked than can be done.
    pressed: BTreeMap<Class, VariantId>,
    /// Those of them of which there is more than enough: see [`Match::plenty`].
    plenty: Vec<VariantId>,
    /// The part of what would be kept in reserve that is not, since little is asked.
    eased: f64,
    /// When it was worked out, and what was in memory then.
    at: Option<(Time, u64)>,
}

impl Level {
    pub(super) fn allows(&self, class: &Class, variant: VariantId) -> bool {
        self.beyond.get(class).is_none_or(|beyond| !beyond.contains(&variant))
    }

    /// The part of the reserve that counts.
    pub(super) fn reserve(&self) -> f64 {
        1.0 - self.eased
    }

    pub(super) fn is_pressed(&self) -> bool {
        !self.pressed.is_empty()
    }

    /// Whether it still says something, though nobody may have come since.
    pub(super) fn is_of_late(&self, now: Time) -> bool {
        self.at.is_some_and(|(at, _)| now - at <= LATELY)
    }

    /// Whether there is more than enough to do of a variant on a pressed device, so that whoever is given up has his place taken.
    pub(super) fn is_plenty(&self, variant: VariantId) -> bool {
        self.plenty.contains(&variant)
    }

    /// What a class is answered by, if more is asked than can be done.
    pub(super) fn pressed(&self, class: &Class) -> Option<VariantId> {
        self.pressed.get(class).copied()
    }
}

/// A class as it is asked.
struct Asked {
    class: Class,
    /// Queries a microsecond.
    rate: f64,
    /// So many times as many come to gateways, in batches of which every so manieth comes here.
    among: f64,
    /// Its tightest bound, in microseconds.
    bound: f64,
    /// What may answer it.
    admitted: Vec<usize>,
    /// What of that can be in time in batches, or all where nothing can, each with the share of a lane that it would take if the class had it alone.
    may: Vec<(usize, f64)>,
}

/// What is to be matched.
struct Match<'a> {
    worker: &'a Worker,
    /// What runs on lanes, in batches by deadline, with the batch of each that pays.
    gears: Vec<(&'a WorkerVariant, u32)>,
    asked: Vec<Asked>,
    /// For each class, by which of the gears it is answered.
    by: Vec<usize>,
    /// The share of a lane that each gear takes so.
    loads: Vec<f64>,
    /// The tightest bound of all.
    tightest: f64,
    /// Batches leave after this part of a bound.
    period: f64,
}

impl Match<'_> {
    /// What is asked lately, each first with what takes the least for it alone: in batches of what comes here, or in `whole` ones.
    fn ask(&mut self, now: Time, apart: &impl Fn(&Class) -> bool, whole: bool) {
        self.asked.clear();
        // At its credit it is not told what has come since.
        let full = self.worker.is_at_credit(now);
        let rate = |(class, flow, last): (&Class, &Flow, Time)| {
            let unheard = if full { 0.0 } else { Moments::exactly(now - last).mean };
            let bound = flow.bounds().iter().copied().fold(f64::INFINITY, f64::min).max(1.0);
            let among = if whole { self.worker.among(now, class) } else { 1.0 };
            (*class, flow.per_us(unheard), among, bound)
        };
        let lately = self.worker.rates.flows().filter(|(.., last)| now - *last <= LATELY);
        let mut rates: Vec<(Class, f64, f64, f64)> =
            lately.map(rate).filter(|(_, rate, ..)| *rate > 0.0).collect();
        rates.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (class, rate, among, bound) in rates {
            if self.asked.len() == CLASSES {
                break;
            }
            let admitted: Vec<usize> =
                (0..self.gears.len()).filter(|gear| admits(&class, self.gears[*gear].0)).collect();
            if admitted.is_empty() || apart(&class) {
                continue;
            }
            // A hopeless bound is nobody's measure.
            if admitted.iter().any(|gear| self.batch(*gear, 1.0) <= bound) {
                self.tightest = self.tightest.min(bound);
            }
            let in_time: Vec<usize> =
                admitted.iter().copied().filter(|gear| self.is_in_time(*gear, rate * among, bound)).collect();
            let may = if in_time.is_empty() { &admitted } else { &in_time };
            let may = may.iter().map(|gear| (*gear, self.share(*gear, (rate, among), bound))).collect();
            self.asked.push(Asked { class, rate, among, bound, admitted, may });
        }
        let cheapest =
            |asked: &Asked| asked.may.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |one| one.0);
        self.by = self.asked.iter().map(cheapest).collect();
        self.loads = (0..self.gears.len()).map(|gear| self.load_on(gear)).collect();
    }

    /// Whether batches of a class can be in time: who waited for his batch to fill has the rest of his bound for its run. Where each comes
    /// alone nobody waits.
    fn is_in_time(&self, gear: usize, rate: f64, bound: f64) -> bool {
        let count = rate * bound * PERIOD;
        let left = if count > 1.0 { bound * (1.0 - PERIOD) } else { bound };
        self.batch(gear, count) <= left
    }

    /// How long a batch of so many takes, or one that is as large as pays.
    fn batch(&self, gear: usize, count: f64) -> f64 {
        let (variant, best) = self.gears[gear];
        self.worker.residency.estimate(variant, whole(libm::ceil(count.clamp(1.0, f64::from(best))))).mean
    }

    /// How long so many take, in as many batches as that needs.
    fn takes(&self, gear: usize, count: f64) -> f64 {
        self.batch(gear, count) * (count / f64::from(self.gears[gear].1)).max(1.0)
    }

    /// The share of a lane that queries take which come at a rate, among so many nodes, and of which batches leave after a part of a bound.
    fn share(&self, gear: usize, (rate, among): (f64, f64), bound: f64) -> f64 {
        // A batch is not smaller than one query.
        let period = (bound * self.period).max(1.0 / (rate * among));
        self.takes(gear, rate * among * period) / (period * among)
    }

    /// The same of all classes that a variant answers, together.
    fn load_on(&self, gear: usize) -> f64 {
        let on = self.asked.iter().zip(&self.by).filter(|(_, by)| **by == gear).map(|(asked, _)| asked);
        let (rate, whole, bound) = on.fold((0.0, 0.0, f64::INFINITY), |(rate, whole, bound), one| {
            (rate + one.rate, whole + one.rate * one.among, one.bound.min(bound))
        });
        if rate > 0.0 { self.share(gear, (rate, whole / rate), bound) } else { 0.0 }
    }

    /// The lanes that all of it keeps busy.
    fn load(&self) -> f64 {
        self.loads.iter().sum()
    }

    /// The lanes that all of it would keep busy at the least: in batches as full as pays, and as bounds allow, which they become when it is needed. With more
    /// classes than are looked at nobody knows.
    fn least(&self) -> f64 {
        if self.asked.len() == CLASSES {
            return f64::INFINITY;
        }
        let least = |asked: &Asked| {
            let each = |(gear, _): &(usize, f64)| self.each_within(*gear, asked.bound * LONGEST);
            asked.rate * asked.may.iter().map(each).fold(f64::INFINITY, f64::min)
        };
        self.asked.iter().map(least).sum()
    }

    /// What a gear takes for each in the largest batch that pays and takes no longer than this, or alone.
    fn each_within(&self, gear: usize, longest: f64) -> f64 {
        let best = f64::from(self.gears[gear].1);
        let halves = core::iter::successors(Some(best), |n| (*n > 1.0).then(|| libm::ceil(n / 2.0)));
        let mut sizes = halves.map(|n| (n, self.batch(gear, n)));
        let fits = sizes.find(|(_, takes)| *takes <= longest);
        fits.map_or_else(|| self.batch(gear, 1.0), |(n, takes)| takes / n)
    }

    /// By how much the load changes if a class is answered by another variant.
    fn change(&mut self, one: usize, gear: usize) -> f64 {
        let now = core::mem::replace(&mut self.by[one], gear);
        let after = self.load_on(now) + self.load_on(gear);
        self.by[one] = now;
        after - self.loads[now] - self.loads[gear]
    }

    fn answer(&mut self, one: usize, gear: usize) {
        let before = core::mem::replace(&mut self.by[one], gear);
        for changed in [before, gear] {
            self.loads[changed] = self.load_on(changed);
        }
    }

    /// All single changes of which something is said, with it; the best of them by that.
    fn best(
        &mut self,
        mut worth: impl FnMut(&mut Self, usize, usize) -> Option<f64>,
    ) -> Option<(usize, usize)> {
        let mut best: Option<(f64, usize, usize)> = None;
        for one in 0..self.asked.len() {
            for at in 0..self.asked[one].may.len() {
                let gear = self.asked[one].may[at].0;
                if gear == self.by[one] {
                    continue;
                }
                if let Some(worth) = worth(self, one, gear)
                    && best.is_none_or(|(known, ..)| worth > known)
                {
                    best = Some((worth, one, gear));
                }
            }
        }
        best.map(|(_, one, gear)| (one, gear))
    }

    /// Classes that share a variant share its batches, which may take less than what is cheapest for each of them.
    fn share_what_pays(&mut self) {
        for _ in 0..self.asked.len() {
            let less =
                |all: &mut Self, one, gear| Some(-all.change(one, gear)).filter(|less| *less > NOTHING);
            let Some((one, gear)) = self.best(less) else { return };
            self.answer(one, gear);
        }
    }

    /// Whether batches of a class take so long by a variant that somebody asked of within a tight bound would wait for them in vain.
    fn holds_up(&self, one: usize, gear: usize) -> bool {
        let Asked { rate, among, bound, .. } = self.asked[one];
        self.batch(gear, rate * among * bound * PERIOD) > self.tightest * LONGEST
    }

    /// Makes answers more accurate while lanes have time left, and somewhat beyond.
    fn be_accurate(&mut self, lanes: f64) {
        let most = lanes + (lanes - self.load()).max(0.0) * OVER;
        // A class is made more accurate no more often than there are variants.
        for _ in 0..self.asked.len() * self.gears.len() {
            let load = self.load();
            let worth = |all: &mut Self, one: usize, gear: usize| {
                let accuracy = |gear: usize| f64::from(all.gears[gear].0.accuracy.ppm());
                let more = accuracy(gear) - accuracy(all.by[one]);
                if more <= 0.0 {
                    return None;
                }
                let (rate, change) = (all.asked[one].rate, all.change(one, gear));
                let is_busy = load + change > lanes * BUSY;
                let fits = load + change <= most && !(is_busy && all.holds_up(one, gear));
                fits.then(|| more * rate / change.max(NOTHING))
            };
            let Some((one, gear)) = self.best(worth) else { return };
            self.answer(one, gear);
        }
    }

    /// The variants of which not everybody can be answered, if what takes less for each goes first.
    fn plenty(&self, lanes: f64) -> Vec<VariantId> {
        let each = |gear: usize| {
            let best = f64::from(self.gears[gear].1);
            self.batch(gear, best) / best
        };
        let mut used: Vec<usize> = (0..self.gears.len()).filter(|gear| self.loads[*gear] > 0.0).collect();
        used.sort_by(|a, b| each(*a).total_cmp(&each(*b)));
        let mut load = 0.0;
        let mut is_too_much = |gear: usize| {
            load += self.loads[gear];
            load > lanes
        };
        used.into_iter().filter(|gear| is_too_much(*gear)).map(|gear| self.gears[gear].0.id).collect()
    }

    /// What takes more of the device for each class than what it was given.
    fn level(&self, at: (Time, u64)) -> Level {
        let mut beyond = BTreeMap::new();
        for (asked, by) in self.asked.iter().zip(&self.by) {
            let most = asked.may.iter().find(|(gear, _)| gear == by).map_or(0.0, |(_, share)| *share);
            let affordable =
                |gear: &usize| asked.may.iter().any(|(known, share)| known == gear && *share <= most);
            let dearer = asked.admitted.iter().filter(|gear| !affordable(gear));
            beyond.insert(asked.class, dearer.map(|gear| self.gears[*gear].0.id).collect());
        }
        Level { beyond, at: Some(at), ..Level::default() }
    }
}

/// The part of the reserve that is not kept on a device that would be busy for such a part of its time.
fn eased(busy: f64) -> f64 {
    let (none, all) = RESERVED;
    1.0 - ((busy - none) / (all - none)).clamp(0.0, 1.0)
}

impl Worker {
    /// Works the level of a device out again where it is old, or what is in memory has changed.
    pub(super) fn reconsider_level(&mut self, now: Time, device: DeviceIx) {
        let changes = self.residency.changes;
        let known = self.levels.get(&device).and_then(|level| level.at);
        if known.is_none_or(|(at, seen)| seen != changes || now - at >= EVERY) {
            let level = self.level_of(now, device);
            self.levels.insert(device, level);
        }
    }

    fn level_of(&self, now: Time, device: DeviceIx) -> Level {
        let at = (now, self.residency.changes);
        let nothing = Level { at: Some(at), ..Level::default() };
        if !self.config.foresight.levels {
            return nothing;
        }
        let on_lanes = |v: &&WorkerVariant| self.batching(v) == Batching::Deadline && !self.apart(v);
        let gear = |v| {
            let largest = u32::try_from(self.largest(device, v)).unwrap_or(u32::MAX);
            (v, self.residency.best_batch(v, largest))
        };
        let gears: Vec<(&WorkerVariant, u32)> =
            self.residency.serving(device).filter(on_lanes).map(gear).collect();
        // Where queries are announced nobody keeps those from it who have no time left, so even with nothing to choose from they must not
        // keep its batches small.
        let announced = self.heard.is_told(now);
        if gears.is_empty() || (gears.len() < 2 && !announced) {
            return nothing;
        }
        let mut all = Match {
            worker: self,
            gears,
            asked: Vec::new(),
            by: Vec::new(),
            loads: Vec::new(),
            tightest: f64::INFINITY,
            period: PERIOD,
        };
        // Of a class that a server may answer nobody knows how much is left to lanes.
        let apart = |class: &Class| self.residency.serving(device).any(|v| self.apart(v) && admits(class, v));
        all.ask(now, &apart, false);
        if !announced && !all.asked.iter().any(|asked| asked.admitted.len() > 1) {
            return nothing;
        }
        let lanes = self.lanes.iter().filter(|lane| lane.device == device).count();
        let lanes = f64::from(u32::try_from(lanes).unwrap_or(u32::MAX));
        let busy = if self.config.foresight.eases { all.least() / lanes.max(1.0) } else { 1.0 };
        let eased = eased(busy);
        if busy < QUIET {
            return Level { eased, ..nothing };
        }
        all.share_what_pays();
        let mut is_pressed = self.config.foresight.full_batches && all.load() >= lanes * PRESSED;
        if is_pressed {
            all.ask(now, &apart, true);
            all.share_what_pays();
            is_pressed = all.load() >= lanes * PRESSED;
        }
        if is_pressed {
            all.period = PRESSED_PERIOD;
            all.ask(now, &apart, true);
            all.share_what_pays();
        }
        all.be_accurate(lanes);
        let by = all.asked.iter().zip(&all.by).map(|(asked, by)| (asked.class, all.gears[*by].0.id));
        let pressed = if is_pressed { by.collect() } else { BTreeMap::new() };
        let plenty = if is_pressed { all.plenty(lanes) } else { Vec::new() };
        Level { pressed, plenty, eased, ..all.level(at) }
    }
}
