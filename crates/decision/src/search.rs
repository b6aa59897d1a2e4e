//! Which batch size of a variant to measure next.
//!
//! A pure function of what was measured so far: asked again after every series of repetitions until it wants no more. So
//! it can be stopped at any moment, and what it would still want says how coarse the figures are.
//!
//! 1. *Bracket*: 1, 2, 4, ... until two doublings together gain hardly any throughput, or memory ends; then the variant's own
//!    limit once, since batches may be filled up to it.
//! 2. *Again*: everything a second time, so that one bad moment of the machine neither ends the bracket nor makes a bend.
//! 3. *Bends*: a size that its neighbours predict badly gets the sizes between it and them measured. One size in the widest
//!    gap is measured only to be predicted: where it is not, there is a bend as well.
//! 4. *Again* until there is a middle one of three series everywhere, and more where they lie far apart; and the cheapest
//!    sizes until there are repetitions enough to tell a 99th percentile.

use alloc::vec::Vec;

/// Doublings that together gain less than this factor have ended the growth of throughput.
const GROWTH: f64 = 1.05;
/// A size that its neighbours miss by more than this share of it lies at a bend.
const BEND: f64 = 0.08;
/// Less than this is not worth another look, whatever its share, in microseconds: a wake-up takes as long.
const WORTH_US: f64 = 50.0;
/// Series of which one is in the middle.
const ROUNDS: u32 = 3;
/// Series that lie further apart than this share of their middle are not steady.
const UNSTEADY: f64 = 0.10;
/// Most series because of that.
const ROUNDS_UNSTEADY: u32 = 6;
/// A hundredth of so many repetitions are a few.
const TAIL_SAMPLES: u32 = 400;
/// Most series of one size because of that, and the most time they may take, in microseconds.
const ROUNDS_TAIL: u32 = 15;
const TAIL_US: f64 = 2e6;
/// Runs in a series, about: what it costs.
pub const RUNS: f64 = 10.0;
/// And at least this long, in microseconds.
const LEAST_US: f64 = 2e4;
/// Sizes besides those of the bracket.
const MORE_SIZES: usize = 8;

/// A batch size, as far as it is known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    /// Items.
    pub batch: u32,
    /// The middle one of its series, in microseconds.
    pub mean_us: f64,
    /// How far its series lie apart, as a share of that.
    pub apart: f64,
    /// Series.
    pub rounds: u32,
    /// Repetitions in all of them.
    pub samples: u32,
}

/// What may be asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// The largest batch that the variant takes.
    pub max_batch: u32,
    /// It only runs with this many items, so a smaller batch costs as much.
    pub fixed: Option<u32>,
    /// The smallest batch that could not be run.
    pub ended: Option<u32>,
    /// Microseconds that are left; `None`: as many as it takes.
    pub left_us: Option<f64>,
}

/// Why a size is to be measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// To find where throughput stops growing.
    Bracket,
    /// It was not measured often enough.
    Again,
    /// Its neighbours are predicted badly.
    Bend,
    /// To see whether it is predicted well.
    Held,
    /// Its series lie far apart.
    Unsteady,
    /// For more repetitions.
    Tail,
}

/// The size of which a series is to be measured next: the most useful one for which there is time. `None`: enough is
/// known, or no time is left. `seen` is in the order of rising batches.
pub fn next(seen: &[Seen], bounds: &Bounds) -> Option<(u32, Why)> {
    let affordable = |(batch, _): &(u32, Why)| {
        // Of the very first nobody knows what it costs.
        let cost = predict(seen, *batch).map_or(0.0, |us| (us * RUNS).max(LEAST_US));
        bounds.left_us.is_none_or(|left| left > 0.0 && cost <= left)
    };
    wanted(seen, bounds).into_iter().find(affordable)
}

/// Whether nothing more would be measured if there were time.
pub fn is_complete(seen: &[Seen], bounds: &Bounds) -> bool {
    next(seen, &Bounds { left_us: None, ..*bounds }).is_none()
}

/// All that is worth measuring now, the most useful first.
fn wanted(seen: &[Seen], bounds: &Bounds) -> Vec<(u32, Why)> {
    let mut wanted = Vec::new();
    wanted.extend(bracket(seen, bounds).map(|batch| (batch, Why::Bracket)));
    again(seen, 2, &mut wanted);
    if bounds.fixed.is_none() && seen.len() < ladder(bounds.max_batch) + MORE_SIZES {
        bends(seen, &mut wanted);
        wanted.extend(held(seen, bounds).map(|batch| (batch, Why::Held)));
    }
    again(seen, ROUNDS, &mut wanted);
    let is_unsteady = |one: &&Seen| {
        let worth = one.apart > UNSTEADY && one.apart * one.mean_us > WORTH_US;
        worth && one.rounds < ROUNDS_UNSTEADY
    };
    let mut unsteady: Vec<&Seen> = seen.iter().filter(is_unsteady).collect();
    unsteady.sort_by(|a, b| a.rounds.cmp(&b.rounds).then(b.apart.total_cmp(&a.apart)));
    wanted.extend(unsteady.into_iter().map(|one| (one.batch, Why::Unsteady)));
    wanted.extend(tail(seen).map(|batch| (batch, Why::Tail)));
    wanted
}

/// How many sizes the bracket has at most.
fn ladder(max_batch: u32) -> usize {
    usize::try_from(max_batch.max(1).ilog2()).unwrap_or(0) + 2
}

fn of(seen: &[Seen], batch: u32) -> Option<&Seen> {
    seen.iter().find(|one| one.batch == batch)
}

fn bracket(seen: &[Seen], bounds: &Bounds) -> Option<u32> {
    let most = bounds.ended.map_or(bounds.max_batch, |ended| bounds.max_batch.min(ended.saturating_sub(1)));
    if of(seen, 1).is_none() {
        return (most >= 1).then_some(1);
    }
    let unknown = |batch: u32| (of(seen, batch).is_none() && batch <= most).then_some(batch);
    if let Some(fixed) = bounds.fixed {
        return unknown(fixed.min(bounds.max_batch));
    }
    let largest = seen.last().map_or(1, |one| one.batch);
    if let Some(ended) = bounds.ended.filter(|ended| *ended <= bounds.max_batch) {
        // Not to the last item: every try that fails costs a process.
        let gap = ended.saturating_sub(largest);
        if gap > 1 && gap > largest / 4 {
            let ladder = largest.saturating_mul(2);
            return Some(if ladder < ended { ladder } else { largest + gap / 2 });
        }
        return None;
    }
    let mut batch = 1;
    while batch < most {
        if batch >= 4
            && let (Some(here), Some(before)) = (of(seen, batch), of(seen, batch / 4))
            && throughput(here) < GROWTH * throughput(before)
        {
            return unknown(most);
        }
        batch = batch.saturating_mul(2).min(most);
        if of(seen, batch).is_none() {
            return Some(batch);
        }
    }
    None
}

fn throughput(one: &Seen) -> f64 {
    f64::from(one.batch) / one.mean_us.max(f64::MIN_POSITIVE)
}

/// Sizes with fewer series than that, those with the fewest first.
fn again(seen: &[Seen], rounds: u32, wanted: &mut Vec<(u32, Why)>) {
    let mut few: Vec<&Seen> = seen.iter().filter(|one| one.rounds < rounds).collect();
    few.sort_by_key(|one| (one.rounds, one.batch));
    wanted.extend(few.into_iter().map(|one| (one.batch, Why::Again)));
}

/// The sizes beside those that are predicted badly, the worst first.
fn bends(seen: &[Seen], wanted: &mut Vec<(u32, Why)>) {
    let sure: Vec<&Seen> = seen.iter().filter(|one| one.rounds >= 2).collect();
    let mut bad: Vec<(f64, [&Seen; 3])> = Vec::new();
    for three in sure.windows(3) {
        let (&[before, held, after], Some(held_us)) = (three, Some(three[1].mean_us)) else { continue };
        let predicted = between(before, after, held.batch);
        let off_us = (predicted - held_us).abs();
        let off = off_us / held_us.max(f64::MIN_POSITIVE);
        let noise = before.apart.max(held.apart).max(after.apart);
        if off > BEND.max(noise) && off_us > WORTH_US {
            bad.push((off, [before, held, after]));
        }
    }
    bad.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, [before, held, after]) in bad {
        let mut gaps = [(before, held), (held, after)];
        gaps.sort_by(|(a, b), (c, d)| {
            (d.mean_us - c.mean_us).abs().total_cmp(&(b.mean_us - a.mean_us).abs())
        });
        for (low, high) in gaps {
            let middle = u32::midpoint(low.batch, high.batch);
            if middle > low.batch && of(seen, middle).is_none() && !wanted.contains(&(middle, Why::Bend)) {
                wanted.push((middle, Why::Bend));
            }
        }
    }
}

/// A size that is measured only to see whether it is predicted: one, in the widest gap.
fn held(seen: &[Seen], bounds: &Bounds) -> Option<u32> {
    let ladder = |batch: u32| batch.is_power_of_two() || batch == bounds.max_batch;
    if seen.iter().any(|one| !ladder(one.batch)) {
        return None;
    }
    let gaps = seen.windows(2).map(|pair| (pair[0].batch, pair[1].batch));
    let (low, high) = gaps.max_by_key(|(low, high)| high - low)?;
    (high - low > 1).then(|| u32::midpoint(low, high))
}

/// The cheapest size, while repetitions are too few to tell a percentile and cost little.
fn tail(seen: &[Seen]) -> Option<u32> {
    let samples: u32 = seen.iter().map(|one| one.samples).sum();
    let first = seen.first()?;
    let extra = first.rounds.saturating_sub(ROUNDS);
    let spent = f64::from(extra) * first.mean_us * RUNS;
    (samples < TAIL_SAMPLES && first.rounds < ROUNDS_TAIL && spent < TAIL_US).then_some(first.batch)
}

/// What a batch of this size takes, by what was seen; `None` as long as that is nothing.
fn predict(seen: &[Seen], batch: u32) -> Option<f64> {
    if let Some(known) = of(seen, batch) {
        return Some(known.mean_us);
    }
    let above = seen.iter().find(|one| one.batch > batch);
    let below = seen.iter().rev().find(|one| one.batch < batch);
    match (below, above) {
        (Some(below), Some(above)) => Some(between(below, above, batch)),
        // At worst every item costs as much as in the largest batch that was seen.
        (Some(below), None) => Some(below.mean_us * f64::from(batch) / f64::from(below.batch)),
        (None, Some(above)) => Some(above.mean_us),
        (None, None) => None,
    }
}

fn between(low: &Seen, high: &Seen, batch: u32) -> f64 {
    let share = (f64::from(batch) - f64::from(low.batch)) / (f64::from(high.batch) - f64::from(low.batch));
    low.mean_us + share * (high.mean_us - low.mean_us)
}
