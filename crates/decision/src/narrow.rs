//! How many lanes of a machine run side by side while something slows them down: fewer, where that is quicker.
//!
//! Routing avoids a node whose replicas are interfered, and the plan moves what has another place. What is still asked of the
//! node after that is what no other node takes. Where its own batches run side by side on fewer cores than they have lanes, because
//! somebody else keeps cores busy or because they slow each other down, each is late; one lane fewer lets those that run have a core
//! to themselves. That gives room away, so it is done only where what is asked fits on the lanes that are left, taken back at once where it
//! does not any more, and taken back where batches turn out to be no quicker for it. `docs/adr/0207` tells why each rule is there.
//!
//! Pure: what is seen is passed in as a [`Scene`], and what follows is a [`Change`].

use crate::words::time;
use alloc::format;
use alloc::string::String;
use modelless_types::{Micros, Time};
use serde::{Deserialize, Serialize};

/// Between two changes at least. So there is one in each two seconds at most, whatever happens.
pub const DWELL: Micros = Micros::from_secs(2);
/// So long something has to be interfered first: routing and the plan go first, and a moment's trouble is not worth it.
pub const SETTLE: Micros = Micros::from_secs(2);
/// So long others must have left room for more lanes, and between a widening and the next narrowing; doubled with each relapse, ...
pub const HOLD: Micros = Micros::from_secs(5);
/// ... so often.
const RELAPSES: u8 = 4;
/// A narrowing within so many times the hold after a widening is a relapse.
const SOON: u64 = 5;
/// Where nothing tells that it is over, it is tried after so long; doubled alike.
pub const TRY: Micros = Micros::from_secs(30);
/// After so long, and so many batches, it has to have helped.
pub const PROOF: Micros = Micros::from_secs(4);
const PROVEN: u32 = 30;
/// It helped if no more than this share of the slowness is left.
const LEFT: f64 = 0.75;
/// What is asked must fit on the lanes that stay with so much of their time, at the speed of the profiles, ...
const ROOM: f64 = 0.7;
/// ... and needs all lanes where it takes more than this of what is open, as fast as they are.
const FULL: f64 = 0.9;
/// Less than this share of one lane's time is nothing to narrow for.
const LEAST: f64 = 0.05;
/// Some of a core is always busy with something.
const MARGIN: u32 = 250;
/// Lanes are opened again for room that is there with less doubt.
const SURE: u32 = 100;
/// Batches beside others on all lanes take so many times what they take beside fewer: they slow each other down.
const CROWDED: f64 = 1.25;
/// Evidence of so many batches counts, ...
const SEEN: u32 = 10;
/// ... the last of which was no longer ago than this.
const FRESH: Micros = Micros::from_secs(30);
/// The weight of a batch among those before it.
const WEIGHT: u32 = 20;

/// A mean of what batches took over what their profiles say.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Told {
    ratio: f64,
    samples: u32,
    at: Time,
}

impl Told {
    fn saw(&mut self, now: Time, ratio: f64) {
        self.samples = self.samples.saturating_add(1);
        self.ratio += (ratio - self.ratio) / f64::from(self.samples.min(WEIGHT));
        self.at = now;
    }

    fn fresh(&self, now: Time) -> Option<f64> {
        (self.samples >= SEEN && now - self.at <= FRESH).then_some(self.ratio)
    }
}

/// What a machine's lanes and those beside them do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scene {
    /// Lanes that there are.
    pub all: u16,
    /// Cores of each.
    pub width: u16,
    /// For how long something that computes here has been interfered.
    pub interfered: Option<Micros>,
    /// What is asked, in lanes that it keeps busy, at the speed of the profiles, ...
    pub asked: f64,
    /// ... and as fast as batches are now.
    pub takes: f64,
    /// Thousandths of a core that all others leave; `None` where the machine does not tell.
    pub left_milli: Option<u32>,
}

impl Scene {
    /// Lanes for which others leave whole cores, none where there is not one.
    fn fits(&self, margin: u32) -> Option<u16> {
        let cores = (self.left_milli? + margin) / (1_000 * u32::from(self.width.max(1)));
        Some(u16::try_from(cores).unwrap_or(u16::MAX).min(self.all))
    }
}

/// Why there are fewer lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// Others keep cores busy.
    Others,
    /// Its own batches slow each other down.
    EachOther,
}

/// Other lanes are to be open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// So many.
    pub lanes: u16,
    /// Why, with figures, for people.
    pub cause: String,
}

/// Fewer lanes than there are, and why: for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Narrowed {
    /// Lanes that batches are bound to.
    pub lanes: u16,
    /// Lanes that there are.
    pub of: u16,
    /// Why.
    pub cause: String,
}

/// What is remembered of it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Narrowing {
    /// Cores that lanes may have, and why fewer than there are; `None`: all.
    narrowed: Option<(u16, By, String)>,
    changed: Option<Time>,
    widened: Option<Time>,
    /// Since when others leave room for more, ...
    roomy: Option<Time>,
    /// ... and since when they leave as much as would not close a lane, while nothing is interfered.
    calm: Option<Time>,
    relapses: u8,
    /// What batches took since the last change, and before it.
    since: Told,
    before: f64,
    /// Beside others on all lanes that are open, and beside fewer.
    crowded: Told,
    spared: Told,
}

impl Narrowing {
    /// How many lanes of a width are open, of so many.
    pub fn open(&self, all: u16, width: u16) -> u16 {
        let all = all.max(1);
        self.narrowed.as_ref().map_or(all, |(cores, ..)| (cores / width.max(1)).clamp(1, all))
    }

    /// Whether fewer are open than there may be.
    pub fn is_narrowed(&self) -> bool {
        self.narrowed.is_some()
    }

    /// The same for people.
    pub fn told(&self, all: u16, width: u16) -> Option<Narrowed> {
        let (.., cause) = self.narrowed.as_ref()?;
        Some(Narrowed { lanes: self.open(all, width), of: all, cause: cause.clone() })
    }

    /// Something became interfered: what batches did to each other before says nothing of it. When a machine is slow its lanes are
    /// busy for longer, so without this they would seem to be slow because they are busy.
    pub fn begins(&mut self) {
        (self.crowded, self.spared) = (Told::default(), Told::default());
    }

    /// A batch ended that took so many times what its profile says, while on average so many other lanes of those that are open were
    /// busy.
    pub fn saw(&mut self, now: Time, ratio: f64, others: f64, open: u16) {
        self.since.saw(now, ratio);
        let most = f64::from(open.saturating_sub(1));
        if most >= 1.0 && others >= most - 0.3 {
            self.crowded.saw(now, ratio);
        } else if others <= most - 0.7 {
            self.spared.saw(now, ratio);
        }
    }

    /// What follows from what is seen now. To be asked about twice a second while something is interfered or narrowed.
    pub fn judge(&mut self, now: Time, scene: &Scene) -> Option<Change> {
        let open = self.open(scene.all, scene.width);
        let more = |margin| scene.fits(margin).is_some_and(|lanes| lanes > open);
        self.roomy = more(SURE).then(|| self.roomy.unwrap_or(now));
        self.calm = (more(MARGIN) && scene.interfered.is_none()).then(|| self.calm.unwrap_or(now));
        if self.changed.is_some_and(|at| now - at < DWELL) {
            return None;
        }
        if let Some((lanes, why)) = self.wider(now, scene, open) {
            self.widened = Some(now);
            return Some(self.change(now, scene, lanes, By::Others, why));
        }
        let (lanes, by, why) = self.narrower(now, scene, open)?;
        if let Some(widened) = self.widened.take() {
            let soon = now - widened < Micros(self.hold().0.saturating_mul(SOON));
            self.relapses = if soon { (self.relapses + 1).min(RELAPSES) } else { 0 };
        }
        Some(self.change(now, scene, lanes, by, why))
    }

    fn hold(&self) -> Micros {
        Micros(HOLD.0 << self.relapses)
    }

    fn change(&mut self, now: Time, scene: &Scene, lanes: u16, by: By, cause: String) -> Change {
        let cores = lanes.saturating_mul(scene.width.max(1));
        self.narrowed = (lanes < scene.all).then(|| (cores, by, cause.clone()));
        self.changed = Some(now);
        (self.roomy, self.calm) = (None, None);
        self.before = self.since.ratio;
        (self.since, self.crowded, self.spared) = (Told::default(), Told::default(), Told::default());
        Change { lanes, cause }
    }

    fn wider(&self, now: Time, scene: &Scene, open: u16) -> Option<(u16, String)> {
        let (_, by, _) = self.narrowed.as_ref()?;
        let (all, changed) = (scene.all, self.changed.unwrap_or(Time::ZERO));
        if scene.takes > FULL * f64::from(open) {
            return Some((
                all,
                format!("{} is asked of {open} of {all} lanes", percent(scene.takes / f64::from(open))),
            ));
        }
        let proven = self.since.samples >= PROVEN && now - changed >= PROOF;
        if proven && self.since.ratio >= CROWDED && self.since.ratio - 1.0 > LEFT * (self.before - 1.0) {
            let why = format!(
                "batches are no quicker with {open} of {all} lanes: {:.2} times their profile, {:.2} before",
                self.since.ratio, self.before
            );
            return Some((all, why));
        }
        match (by, scene.fits(SURE)) {
            (By::Others, Some(lanes)) => {
                // Others who go on taking a little would else keep a lane closed for ever that they would not have closed.
                let tried = Micros(TRY.0 << self.relapses);
                let calm = self.calm.filter(|since| now - *since >= tried).and_then(|_| scene.fits(MARGIN));
                let hold = self.hold();
                let sure = self.roomy.filter(|since| now - *since >= hold).map(|_| (lanes, hold));
                let (lanes, long) = sure.or(calm.map(|lanes| (lanes, tried)))?;
                let why =
                    format!("others have left {} cores and more for {}", tenth(scene.left_milli), time(long));
                (lanes > open).then_some((lanes, why))
            }
            (By::EachOther, _) | (By::Others, None) => {
                let tried = Micros(TRY.0 << self.relapses);
                let why = || format!("it is tried again after {}", time(tried));
                (now - changed >= tried).then(|| (all, why()))
            }
        }
    }

    fn narrower(&self, now: Time, scene: &Scene, open: u16) -> Option<(u16, By, String)> {
        let waits = self.widened.is_some_and(|at| now - at < self.hold());
        let long = scene.interfered.is_some_and(|long| long >= SETTLE);
        if open < 2 || waits || !long || scene.asked < LEAST {
            return None;
        }
        // The fewest that what is asked fits on.
        let least = (1..open).find(|lanes| scene.asked <= ROOM * f64::from(*lanes))?;
        let asked = |lanes: u16| {
            format!("what is asked keeps {} of {lanes} busy", percent(scene.asked / f64::from(lanes)))
        };
        if let Some(fits) = scene.fits(MARGIN).filter(|fits| *fits < open) {
            // Where no whole core is left all is shared, and fewer lanes would only have a smaller share.
            if fits >= least {
                let why = format!(
                    "others leave {} cores for {open} lanes{}, and batches take {:.2} times their profile; {}",
                    tenth(scene.left_milli),
                    wide(scene.width),
                    self.since.ratio,
                    asked(fits)
                );
                return Some((fits, By::Others, why));
            }
        }
        let (crowded, spared) = (self.crowded.fresh(now)?, self.spared.fresh(now)?);
        let lanes = open - 1;
        if crowded < CROWDED * spared || least > lanes {
            return None;
        }
        let why = format!(
            "batches on {open} lanes at once slow each other down: {crowded:.2} times their profile, {spared:.2} beside fewer; {}",
            asked(lanes)
        );
        Some((lanes, By::EachOther, why))
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn tenth(milli: Option<u32>) -> String {
    milli.map_or_else(String::new, |milli| format!("{}.{}", milli / 1_000, milli % 1_000 / 100))
}

fn wide(width: u16) -> String {
    if width > 1 { format!(" of {width} cores") } else { String::new() }
}

#[cfg(test)]
mod tests;
