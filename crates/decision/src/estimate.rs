//! The one performance model: how long a batch takes, as mean and variance.
//!
//! Sums add means and variances and only then take the 99th percentile, so a chain of stages is not charged each
//! stage's worst case. Routing, binding, planning, explanations and the simulator all ask here. The arithmetic is
//! `f64` in a fixed order of operations, so it comes out the same everywhere; results leave as whole microseconds.

use crate::common::{self, Own};
use crate::fit;
use crate::sizes::{self, Coverage, Sizes};
use alloc::vec::Vec;
use modelless_types::{BatchPoint, CostPer1k, Micros, PricePerHour, Profile, StageTime};
use serde::{Deserialize, Serialize};

pub use crate::moments::Moments;
pub(crate) use crate::moments::Z99;

/// What is borrowed makes nothing quicker than this share of what its own batches say.
const LEAST_OF_OWN: f64 = 0.25;

/// What live traffic says about a profile: the ratio of seen to predicted, smoothed, and how much it scatters.
/// Kept by the executor that sees it; travels with its reports.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Correction {
    /// Seen over predicted.
    pub ratio: f64,
    /// Variance of that ratio.
    pub spread: f64,
    /// Observations so far.
    pub samples: u32,
}

impl Correction {
    /// Nothing seen: the profile stands as it is.
    pub const NONE: Self = Self { ratio: 1.0, spread: 0.0, samples: 0 };

    /// The profile weighs as much as this many observations, so that one slow batch does not overturn what was measured.
    const PRIOR: u32 = 10;
    /// Observations after which older ones fade.
    const MEMORY: u32 = 20;
    /// One wild observation (a stopped machine) counts as at most this factor of what was usual, and as many deviations
    /// more as the 99th percentile has: what happens less than once in a hundred times must not set that percentile.
    /// Were it believed, a batch of 50 us that the machine holds up for 4 ms would have everybody refused for a second.
    const CLAMP: f64 = 2.0;
    /// What is left of a correction after a while in which nothing was seen.
    const FADE: f64 = 0.7;
    /// Below this a correction says nothing.
    const NEGLIGIBLE: f64 = 0.01;

    /// A change by this factor does not wait: what is promised by the old figure meanwhile is wrong.
    const LEAP: f64 = 1.25;

    /// Whether what runs is so much slower or quicker than it was when `before` was told.
    pub fn leapt_from(&self, before: &Self) -> bool {
        self.ratio > before.ratio * Self::LEAP || before.ratio > self.ratio * Self::LEAP
    }

    /// What the last of so many observations weighs.
    fn weight(samples: u32) -> f64 {
        1.0 / f64::from(samples.min(Self::MEMORY) + Self::PRIOR)
    }

    /// Takes in one observation.
    #[must_use]
    pub fn observe(self, seen: Micros, predicted: Moments) -> Self {
        if predicted.mean <= 0.0 {
            return self;
        }
        self.learn(Moments::exactly(seen).mean / predicted.mean).0
    }

    /// The same of a ratio; gives also what that was taken for.
    fn learn(self, seen: f64) -> (Self, f64) {
        let most = self.ratio * Self::CLAMP + Z99 * libm::sqrt(self.spread);
        let seen = seen.clamp(self.ratio / (4.0 * Self::CLAMP), most);
        let samples = self.samples.saturating_add(1);
        let weight = Self::weight(samples);
        let error = seen - self.ratio;
        let learnt = Self {
            ratio: self.ratio + weight * error,
            spread: (1.0 - weight) * (self.spread + weight * error * error),
            samples,
        };
        (learnt, seen)
    }

    /// A while has passed without an observation: what was seen is worth less, the profile more. Otherwise one bad
    /// minute could keep a variant from being used, and so from being seen to be well again.
    #[must_use]
    pub fn faded(self) -> Self {
        let ratio = 1.0 + (self.ratio - 1.0) * Self::FADE;
        let spread = self.spread * Self::FADE;
        let off = (ratio - 1.0).abs() > Self::NEGLIGIBLE || spread > Self::NEGLIGIBLE * Self::NEGLIGIBLE;
        if off { Self { ratio, spread, samples: self.samples - self.samples / 4 } } else { Self::NONE }
    }
}

/// How long one variant takes on one device: its profile, corrected.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunModel {
    /// Rising batch sizes, at least one.
    points: Vec<(u32, Moments)>,
    /// Decoding one input, before it can wait for a batch.
    decode: Moments,
    /// Getting one item ready (resize, normalise, copy).
    per_item: Moments,
    /// What live traffic says of the variant as a whole.
    pub correction: Correction,
    /// And how sizes of batches differ from that. Known only where it was seen: others go by the whole.
    #[serde(skip)]
    sizes: Sizes,
    /// How much of the correction its own batches say; the rest is the profile.
    #[serde(skip)]
    own: f64,
    /// What the other variants of its device have in common, in place of that rest: so much is its ratio above the correction's.
    #[serde(skip)]
    borrowed: f64,
    /// How well live batches kept to what was predicted.
    #[serde(default, skip_serializing_if = "Coverage::is_empty")]
    pub coverage: Coverage,
    /// What an hour of it costs, where that is not what its node's device costs: it computes elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<PricePerHour>,
}

/// What profiled times of one kind of size are corrected by.
#[derive(Clone, Copy)]
struct Correcting {
    ratio: f64,
    /// What such batches say themselves of the variance of their ratio, and what is borrowed brings with it.
    own: f64,
    /// How little that is: the rest is the profile's, or what batches of any size say, whichever is more. The profile's fades the sooner: one that
    /// was made while the machine was busy with something else would have a variant seem unsure for as long as it is served.
    unknown: f64,
    common: f64,
    wide: f64,
}

impl Correcting {
    fn of(self, raw: Moments) -> Moments {
        let Self { ratio, own, unknown, common, wide } = self;
        let square = raw.mean * raw.mean;
        let profiled = unknown * raw.var * ratio * ratio;
        let var = unknown * profiled.max(square * common) + square * own;
        Moments { mean: raw.mean * ratio, var: var * wide * wide }
    }
}

impl RunModel {
    /// From what was measured. `None` if the profile has no usable point.
    pub fn from_profile(profile: &Profile) -> Option<Self> {
        let stage = |time: StageTime| Moments { mean: time.mean_us.max(0.0), var: time.var_us2.max(0.0) };
        let model = Self::of(fit::of_profile(profile), stage(profile.prepare))?;
        Some(Self { decode: stage(profile.decode), ..model })
    }

    /// From points alone.
    pub fn from_points(points: &[BatchPoint], per_item: Moments) -> Option<Self> {
        Self::of(fit::of_points(points), per_item)
    }

    fn of(points: Vec<(u32, Moments)>, per_item: Moments) -> Option<Self> {
        if points.is_empty() {
            return None;
        }
        Some(Self {
            points,
            decode: Moments::ZERO,
            per_item,
            correction: Correction::NONE,
            sizes: Sizes::default(),
            own: 0.0,
            borrowed: 0.0,
            coverage: Coverage::default(),
            price: None,
        })
    }

    /// Whether it is what [`RunModel::from_points`] makes, for one that came from elsewhere.
    pub fn is_sound(&self) -> bool {
        let usable = |m: &Moments| m.mean.is_finite() && m.mean >= 0.0 && m.var.is_finite() && m.var >= 0.0;
        let rising = self.points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let corrected = self.correction.ratio.is_finite() && self.correction.ratio > 0.0;
        let times = self.points.iter().map(|(_, time)| time).chain([&self.decode, &self.per_item]);
        !self.points.is_empty()
            && self.points[0].0 > 0
            && rising
            && corrected
            && times.into_iter().all(usable)
    }

    /// With a time for decoding one input.
    #[must_use]
    pub fn with_decode(self, decode: Moments) -> Self {
        Self { decode, ..self }
    }

    /// With a price of its own, where it computes elsewhere than on its node's device.
    #[must_use]
    pub fn with_price(self, price: Option<PricePerHour>) -> Self {
        Self { price, ..self }
    }

    /// As the profile has it, before correction: what observations are compared with.
    pub fn uncorrected(&self, batch: u32) -> Moments {
        let batch = batch.max(1);
        match self.points.binary_search_by_key(&batch, |(b, _)| *b) {
            Ok(found) => self.points[found].1,
            Err(0) => self.points[0].1, // below the smallest point: never assume less than was seen
            Err(above) if above < self.points.len() => {
                line(self.points[above - 1], self.points[above], batch)
            }
            Err(above) if above >= 2 => line(self.beyond_from(), self.points[above - 1], batch),
            Err(_) => {
                let (measured, moments) = self.points[0];
                moments.times(f64::from(batch) / f64::from(measured))
            }
        }
    }

    /// Where the line starts that leads beyond the largest point: the point before it, or where those are level the last
    /// that is quicker. What was measured as level by chance does not stay so for ever.
    fn beyond_from(&self) -> (u32, Moments) {
        let (last, rest) = (self.points[self.points.len() - 1].1.mean, &self.points[..self.points.len() - 1]);
        let quicker = rest.iter().rev().find(|(_, time)| time.mean < last);
        *quicker.unwrap_or(&rest[rest.len() - 1])
    }

    /// **The estimate**: device time of a batch, preparation included.
    pub fn estimate(&self, batch: u32) -> Moments {
        self.estimate_from(self.uncorrected(batch), batch)
    }

    /// The same for who knows what [`Self::uncorrected`] says.
    pub(crate) fn estimate_from(&self, raw: Moments, batch: u32) -> Moments {
        self.corrected(raw, batch) + self.per_item.times(f64::from(batch))
    }

    /// The part of it that the batch runs.
    pub(crate) fn running(&self, batch: u32) -> Moments {
        self.corrected(self.uncorrected(batch), batch)
    }

    /// What [`Self::estimate_from`] says of batches of one, of two, and so on.
    pub(crate) fn estimates_from<'a>(&'a self, raw: &'a [Moments]) -> impl Iterator<Item = Moments> + 'a {
        let mut known = (sizes::kind(1), self.correcting(1));
        (1..).zip(raw).map(move |(batch, raw)| {
            let kind = sizes::kind(batch);
            if kind != known.0 {
                known = (kind, self.correcting(batch));
            }
            known.1.of(*raw) + self.per_item.times(f64::from(batch))
        })
    }

    fn corrected(&self, raw: Moments, batch: u32) -> Moments {
        self.correcting(batch).of(raw)
    }

    /// How batches of the kind that this one is of are corrected.
    fn correcting(&self, batch: u32) -> Correcting {
        let (own, factor) = (self.ratio(), self.sizes.factor(batch));
        Correcting {
            ratio: own * factor,
            own: self.sizes.spread(batch, own) + common::doubt(self.borrowed * factor),
            unknown: 1.0 - self.sizes.known(batch),
            common: self.correction.spread * factor * factor,
            wide: self.sizes.widening(),
        }
    }

    /// Seen over profiled, by its own batches and by what the other variants of its device have in common.
    pub fn ratio(&self) -> f64 {
        (self.correction.ratio + self.borrowed).max(self.correction.ratio * LEAST_OF_OWN)
    }

    /// What its own batches say.
    pub(crate) fn own(&self) -> Own {
        Own { ratio: self.correction.ratio, share: self.own }
    }

    /// The others of its device have this in common. Whether that changes what it is expected to take.
    pub(crate) fn borrow(&mut self, common: f64) -> bool {
        let borrowed = common::borrowed(self.own(), common);
        let borrowed = if borrowed.abs() > Correction::NEGLIGIBLE { borrowed } else { 0.0 };
        let changed = (borrowed - self.borrowed).abs() > Correction::NEGLIGIBLE
            || (borrowed == 0.0) != (self.borrowed == 0.0);
        if changed {
            self.borrowed = borrowed;
        }
        changed
    }

    /// Takes in whether a batch took longer than had been predicted as its 99th percentile.
    pub(crate) fn judge(&mut self, above: bool) {
        self.coverage.count(above);
        self.sizes.judge(above);
    }

    /// Takes in how long a batch ran.
    pub(crate) fn observe(&mut self, batch: u32, took: Micros) {
        let raw = self.uncorrected(batch).mean;
        if raw <= 0.0 {
            return;
        }
        let factor = self.sizes.factor(batch);
        let (learnt, seen) = self.correction.learn(Moments::exactly(took).mean / raw / factor);
        self.sizes.observe(batch, seen * factor / learnt.ratio);
        self.correction = learnt;
        self.own += Correction::weight(learnt.samples) * (1.0 - self.own);
    }

    /// Nothing of it was seen for a while: see [`Correction::faded`].
    pub(crate) fn fade(&mut self) {
        self.correction = self.correction.faded();
        self.own = if self.correction == Correction::NONE { 0.0 } else { self.own * Correction::FADE };
        self.sizes.fade(Correction::FADE);
    }

    /// Whether live traffic says anything of it.
    pub(crate) fn is_corrected(&self) -> bool {
        self.correction != Correction::NONE || self.sizes != Sizes::default()
    }

    /// Keeps what was learnt of it by `before`, as far as that is about the same profile. Whether it is.
    pub(crate) fn inherit(&mut self, before: &Self) -> bool {
        let same = self.points == before.points;
        if same {
            (self.correction, self.sizes) = (before.correction, before.sizes);
            (self.own, self.borrowed) = (before.own, before.borrowed);
        }
        self.coverage = before.coverage;
        same
    }

    /// The part of it that is writing the inputs.
    pub(crate) fn writing(&self, batch: usize) -> Moments {
        self.per_item.times(f64::from(u32::try_from(batch).unwrap_or(u32::MAX)))
    }

    /// What gateways are told: how sizes of batches differ stays on the node, which alone picks sizes. Whether a gateway hears of
    /// it over a wire or by a call, it knows the same.
    /// What it borrowed is a part of the ratio then.
    #[must_use]
    pub fn told(&self) -> Self {
        let Correction { spread, samples, .. } = self.correction;
        let correction = if self.borrowed == 0.0 {
            self.correction
        } else {
            // Of what saw nothing and borrowed nothing others may assume what nodes like this one saw.
            let spread = spread + common::doubt(self.borrowed);
            Correction { ratio: self.ratio(), spread, samples: samples.max(1) }
        };
        Self { correction, sizes: Sizes::default(), own: 0.0, borrowed: 0.0, ..self.clone() }
    }

    /// The same if live traffic had said nothing.
    #[must_use]
    pub fn profiled(&self) -> Self {
        let mut profiled = self.clone();
        profiled.forget_live();
        profiled
    }

    /// As if live traffic had said nothing.
    pub fn forget_live(&mut self) {
        self.correction = Correction::NONE;
        self.sizes = Sizes::default();
        (self.own, self.borrowed) = (0.0, 0.0);
        self.coverage = Coverage::default();
    }

    /// The batch that takes the least device time per query, of those measured and the largest allowed. What gains
    /// nothing by growing stays small.
    pub fn best_batch(&self, max_batch: u32) -> u32 {
        self.best_batch_of(max_batch, |batch| self.estimate(batch))
    }

    /// The same for who knows the estimates.
    pub(crate) fn best_batch_of(&self, max_batch: u32, estimate: impl Fn(u32) -> Moments) -> u32 {
        let largest = max_batch.min(self.largest_measured()).max(1);
        let measured = self.points.iter().map(|(batch, _)| *batch).filter(|batch| *batch <= largest);
        let each = |batch: u32| estimate(batch).mean / f64::from(batch);
        let best = |a: u32, b: u32| if each(b) < each(a) { b } else { a };
        measured.chain([largest]).fold(1, best)
    }

    /// Device time per query in that batch.
    pub fn per_query(&self, max_batch: u32) -> Moments {
        let batch = self.best_batch(max_batch);
        self.estimate(batch).times(1.0 / f64::from(batch))
    }

    /// The same in whole nanoseconds.
    pub fn work(&self, max_batch: u32) -> u64 {
        let Moments { mean, .. } = self.per_query(max_batch);
        Moments { mean: mean * 1e3, var: 0.0 }.mean().0
    }

    /// From an undecoded input to its answer, alone on an idle device, as the profile says.
    pub fn undisturbed(&self) -> Moments {
        self.decode + self.uncorrected(1)
    }

    /// From an undecoded input to its answer, alone on an idle device.
    pub fn service(&self) -> Moments {
        self.decode + self.estimate(1)
    }

    /// What one query of a batch costs per thousand, on a device of this price unless it has one of its own.
    pub fn cost(&self, batch: u32, device: PricePerHour) -> CostPer1k {
        CostPer1k::of_batch(self.estimate(batch).mean(), self.price.unwrap_or(device), batch)
    }

    /// The largest batch that was measured.
    pub fn largest_measured(&self) -> u32 {
        self.points.last().map_or(1, |(batch, _)| *batch)
    }
}

/// On the line through two points; never below zero.
fn line((b0, m0): (u32, Moments), (b1, m1): (u32, Moments), batch: u32) -> Moments {
    let t = (f64::from(batch) - f64::from(b0)) / (f64::from(b1) - f64::from(b0));
    Moments {
        mean: (m0.mean + t * (m1.mean - m0.mean)).max(0.0),
        var: (m0.var + t * (m1.var - m0.var)).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(points: &[(u32, f64, f64)]) -> RunModel {
        let points: Vec<BatchPoint> = points
            .iter()
            .map(|&(batch, mean_us, var_us2)| BatchPoint {
                batch,
                mean_us,
                var_us2,
                p99_us: mean_us,
                samples: 10,
            })
            .collect();
        RunModel::from_points(&points, Moments::ZERO).expect("points")
    }

    #[test]
    fn between_points_is_a_line_and_beyond_them_too() {
        let m = model(&[(1, 100.0, 4.0), (4, 400.0, 16.0), (8, 600.0, 16.0)]);
        assert_eq!(m.estimate(1).mean(), Micros(100));
        assert_eq!(m.estimate(2).mean(), Micros(200));
        assert_eq!(m.estimate(6).mean(), Micros(500));
        assert_eq!(m.estimate(16).mean(), Micros(1_000));
        assert_eq!(m.estimate(0), m.estimate(1));
    }

    #[test]
    fn one_point_is_taken_as_time_per_item() {
        let m = model(&[(2, 100.0, 0.0)]);
        assert_eq!(m.estimate(1).mean(), Micros(100));
        assert_eq!(m.estimate(6).mean(), Micros(300));
    }

    #[test]
    fn a_correction_follows_what_is_seen_and_one_wild_value_does_not_break_it() {
        let mut m = model(&[(1, 100.0, 1.0)]);
        for _ in 0..100 {
            m.correction = m.correction.observe(Micros(150), m.uncorrected(1));
        }
        assert!((m.estimate(1).mean - 150.0).abs() < 2.0, "{:?}", m.correction);
        let before = m.correction.ratio;
        m.correction = m.correction.observe(Micros(60_000_000), m.uncorrected(1));
        assert!(m.correction.ratio < 1.5 * before, "{:?}", m.correction);
    }

    #[test]
    fn a_profile_that_is_wrong_for_one_size_only_is_corrected_for_that_one() {
        let mut m = model(&[(1, 100.0, 1.0), (16, 1_000.0, 1.0)]);
        for round in 0..300 {
            m.observe(1, Micros(150));
            if round % 4 == 0 {
                m.observe(16, Micros(1_000));
            }
        }
        let (alone, many) = (m.estimate(1), m.estimate(16));
        assert!((alone.mean - 150.0).abs() < 4.0 && (many.mean - 1_000.0).abs() < 40.0, "{alone:?} {many:?}");
        assert!(alone.p99() < Micros(170) && many.p99() < Micros(1_200), "{alone:?} {many:?}");
        // What slows all of them down is believed of sizes that were not seen since.
        for _ in 0..60 {
            m.observe(1, Micros(300));
        }
        assert!(m.estimate(16).mean > 1_400.0, "{:?}", m.estimate(16));
        assert!(m.is_corrected() && !m.profiled().is_corrected());
        let mut other = model(&[(1, 100.0, 1.0), (16, 1_000.0, 1.0)]);
        assert!(other.inherit(&m) && other == m);
        assert!(!model(&[(1, 101.0, 1.0)]).inherit(&m));
    }

    #[test]
    fn what_a_machine_did_while_it_was_measured_is_forgotten_once_batches_show_that_it_does_so_no_more() {
        let mut m = model(&[(1, 100.0, 90_000.0), (4, 300.0, 90_000.0)]);
        let p99 = |m: &RunModel, batch| m.estimate(batch).p99().0;
        let profiled = (p99(&m, 1), p99(&m, 4));
        for round in 0..20 {
            m.observe(1, Micros(95 + round % 10));
        }
        assert!(p99(&m, 1) > 300, "{} after a few", p99(&m, 1));
        for round in 0..400 {
            m.observe(1, Micros(95 + round % 10));
        }
        assert!(p99(&m, 1) < 230 && profiled.0 > 700, "{} after many", p99(&m, 1));
        assert!(p99(&m, 4).abs_diff(profiled.1) < 40, "nothing was seen of fours: {}", p99(&m, 4));
    }

    #[test]
    fn a_profile_without_usable_points_gives_no_model() {
        assert!(RunModel::from_points(&[], Moments::ZERO).is_none());
        let nan = BatchPoint { batch: 1, mean_us: f64::NAN, var_us2: 0.0, p99_us: 0.0, samples: 1 };
        assert!(RunModel::from_points(&[nan], Moments::ZERO).is_none());
    }
}
