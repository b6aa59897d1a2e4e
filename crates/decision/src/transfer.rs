//! What to assume of a variant on a device class on which it was never run: what is known of it on another one, scaled by how
//! variants that were measured on both compare.
//!
//! It serves until the variant is measured, which whoever takes it does next. What it is not good for:
//!
//! * *Without a measured pair there is none.* A class of which nothing is known is not guessed at.
//! * *Accuracy is not scaled.* Floors are compared with what was measured elsewhere, word for word, and only of variants that
//!   compute in floating point: integers saturate on some processors and not on others, and then an answer could fall below
//!   its floor. What was merely declared is not carried over either.
//! * *It does not look better than it is.* Its variance holds how much the pairs differ, and at least a part of the mean, so
//!   that its 99th percentile keeps away from deadlines that a measured variant would meet.

use crate::estimate::{RunModel, Z99};
use alloc::string::ToString as _;
use alloc::vec::Vec;
use modelless_types::{BatchPoint, Detail, Micros, Profile, Provenance, StageTime, VariantSettings};

/// Pairs that tell how far to trust them: fewer count as if they lay further apart.
const ENOUGH: usize = 3;
/// The least deviation of an estimate, as a share of its mean: with enough pairs of its kind, with few, with others.
const DEVIATION: [f64; 3] = [0.10, 0.20, 0.35];

/// A variant that was measured both on the known class and on the new one.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// How it is run.
    pub settings: &'a VariantSettings,
    /// On the known class.
    pub known: &'a Profile,
    /// On the new one.
    pub here: &'a Profile,
}

/// Whether what a variant answers hardly depends on the processor.
pub fn computes_alike(precision: &str) -> bool {
    precision.starts_with("fp") || precision.starts_with("bf")
}

/// The profile to assume on a new class. `None` where nothing may be assumed.
pub fn profile(
    settings: &VariantSettings,
    known: &Profile,
    device_class: &str,
    pairs: &[Pair<'_>],
) -> Option<Profile> {
    let accuracy = match known.accuracy.provenance {
        Provenance::Measured | Provenance::Live => known.accuracy.clone(),
        Provenance::Declared | Provenance::Estimated => return None,
    };
    if known.is_estimated() || !computes_alike(&settings.precision) {
        return None;
    }
    // What one processor says of two classes says nothing of another.
    let beside = |pair: &&Pair<'_>| pair.settings.processor == settings.processor;
    let pairs: Vec<&Pair<'_>> = pairs.iter().filter(beside).collect();
    let kin = |pair: &&Pair<'_>| {
        (pair.settings.engine, &pair.settings.precision, pair.settings.threads)
            == (settings.engine, &settings.precision, settings.threads)
    };
    let same_lanes = |pair: &&Pair<'_>| {
        (pair.settings.engine, pair.settings.threads) == (settings.engine, settings.threads)
    };
    let near: Vec<&Pair<'_>> = pairs.iter().copied().filter(kin).collect();
    let like: Vec<&Pair<'_>> = pairs.iter().copied().filter(same_lanes).collect();
    let (chosen, near_enough) = match (near.is_empty(), like.is_empty()) {
        (false, _) => (near, true),
        (true, false) => (like, false),
        (true, true) => (pairs, false),
    };
    let runs: Vec<f64> = chosen.iter().filter_map(|pair| run_ratio(pair.known, pair.here)).collect();
    let (run, apart) = middle(runs.clone())?;
    let least = match (near_enough, runs.len() >= ENOUGH) {
        (true, true) => DEVIATION[0],
        (true, false) => DEVIATION[1],
        (false, _) => DEVIATION[2],
    };
    let deviation = apart.max(least);
    let ratio = |of: fn(&Profile) -> f64| {
        let ratios = chosen.iter().filter(|pair| of(pair.known) > 0.0 && of(pair.here) > 0.0);
        middle(ratios.map(|pair| of(pair.here) / of(pair.known)).collect()).map_or(run, |(ratio, _)| ratio)
    };
    let (decode, prepare) = (ratio(|p| p.decode.mean_us), ratio(|p| p.prepare.mean_us));
    let load = ratio(|p| micros(p.load_time));
    let point = |point: &BatchPoint| {
        let mean_us = point.mean_us * run;
        let var_us2 = point.var_us2 * run * run + (mean_us * deviation) * (mean_us * deviation);
        let straggling = (point.p99_us - point.mean_us).max(0.0) * run;
        let p99_us = mean_us + straggling.max(Z99 * libm::sqrt(var_us2));
        BatchPoint { batch: point.batch, mean_us, var_us2, p99_us, samples: 0 }
    };
    let stage = |stage: StageTime, ratio: f64| StageTime {
        mean_us: stage.mean_us * ratio,
        var_us2: stage.var_us2 * ratio * ratio,
        samples: stage.samples,
    };
    Some(Profile {
        device_class: device_class.to_string(),
        latency: known.latency.iter().map(point).collect(),
        latency_provenance: Provenance::Estimated,
        decode: stage(known.decode, decode),
        prepare: stage(known.prepare, prepare),
        memory: known.memory,
        peak: known.peak,
        load_time: scaled(known.load_time, load),
        accuracy,
        also: known.also.clone(),
        detail: Detail {
            coarse: true,
            part_of_set: known.detail.part_of_set,
            doubts: known.detail.doubts.clone(),
            tail: known.detail.tail,
            load_cold: known.detail.load_cold.map(|time| scaled(time, load)),
            largest: known.detail.largest.clone(),
            length: known.detail.length,
            points: Vec::new(),
            unsteady: None,
        },
    })
}

#[expect(clippy::cast_precision_loss, reason = "2^53 us is 285 years")]
fn micros(time: Micros) -> f64 {
    time.0 as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn scaled(time: Micros, ratio: f64) -> Micros {
    Micros(libm::ceil(micros(time) * ratio) as u64)
}

/// How much longer a variant takes here: the geometric mean over the batch sizes that both know.
fn run_ratio(known: &Profile, here: &Profile) -> Option<f64> {
    let (known, here) = (RunModel::from_profile(known)?, RunModel::from_profile(here)?);
    let most = known.largest_measured().min(here.largest_measured());
    let (mut sum, mut count, mut batch) = (0.0, 0.0, 1);
    while batch <= most {
        let (there, here) = (known.uncorrected(batch).mean, here.uncorrected(batch).mean);
        if there > 0.0 && here > 0.0 {
            sum += libm::log(here / there);
            count += 1.0;
        }
        batch = batch.saturating_mul(2);
    }
    (count > 0.0).then(|| libm::exp(sum / count))
}

/// The middle one of ratios, and how far the others lie from it, as a share: half of them nearer.
fn middle(mut ratios: Vec<f64>) -> Option<(f64, f64)> {
    ratios.retain(|ratio| ratio.is_finite() && *ratio > 0.0);
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        let high = *values.get(values.len() / 2)?;
        let low = *values.get((values.len().checked_sub(1)?) / 2)?;
        Some(f64::midpoint(low, high))
    };
    let ratio = median(&mut ratios)?;
    let mut off: Vec<f64> = ratios.iter().map(|one| (libm::log(one / ratio)).abs()).collect();
    // Of a normal distribution half lie within 0.6745 deviations.
    Some((ratio, median(&mut off)? / 0.6745))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;
    use modelless_types::{Accuracy, AccuracyMeasure, Bytes, Engine, Processor};

    fn settings(precision: &str, threads: u16) -> VariantSettings {
        VariantSettings {
            engine: Engine::Onnx,
            precision: precision.to_string(),
            threads,
            max_batch: 8,
            optimisation: modelless_types::Optimisation::default(),
            processor: modelless_types::Processor::default(),
            gpu_memory: None,
            string_bytes: None,
        }
    }

    fn measured(class: &str, us: f64) -> Profile {
        let accuracy = |ppm| Accuracy::from_ppm(ppm).expect("below a million");
        let point = |batch: u32, share: f64| BatchPoint {
            batch,
            mean_us: us * share,
            var_us2: (us * share * 0.01) * (us * share * 0.01),
            p99_us: us * share * 1.05,
            samples: 100,
        };
        Profile {
            device_class: class.to_string(),
            latency: vec![point(1, 1.0), point(4, 2.0), point(8, 4.0)],
            latency_provenance: Provenance::Measured,
            decode: StageTime { mean_us: 10.0, var_us2: 1.0, samples: 50 },
            prepare: StageTime::default(),
            memory: Bytes::from_mib(10),
            peak: None,
            load_time: Micros(1_000),
            accuracy: AccuracyMeasure {
                value: accuracy(900_000),
                low: accuracy(890_000),
                high: accuracy(910_000),
                samples: 1_000,
                set: String::from("a set"),
                provenance: Provenance::Measured,
                device_class: class.to_string(),
                command: String::new(),
            },
            also: vec![],
            detail: Detail { tail: true, ..Detail::default() },
        }
    }

    #[test]
    fn times_are_scaled_by_what_was_measured_on_both_and_accuracy_is_not() {
        let one = settings("fp32", 1);
        let (a, b) = (measured("old", 100.0), measured("new", 250.0));
        let pairs = [Pair { settings: &one, known: &a, here: &b }];
        let other = measured("old", 1_000.0);
        let made = profile(&one, &other, "new", &pairs).expect("a pair");
        assert!(made.is_estimated() && made.detail.coarse && made.device_class == "new");
        assert!((made.latency[0].mean_us - 2_500.0).abs() < 1e-6, "{made:?}");
        assert!((made.latency[2].mean_us - 10_000.0).abs() < 1e-6);
        assert_eq!(made.accuracy, other.accuracy, "it says where it was measured");
        assert_eq!(made.load_time, Micros(1_000));
        // Less certain than anything measured.
        let p99 = |of: &Profile| RunModel::from_profile(of).expect("points").uncorrected(1).p99().0;
        assert!(p99(&made) > 2_500 * 14 / 10, "{}", p99(&made));
        assert!(p99(&measured("new", 2_500.0)) < 2_500 * 11 / 10);
    }

    #[test]
    fn more_pairs_of_the_same_kind_make_it_surer() {
        let one = settings("fp32", 1);
        let many = settings("fp32", 4);
        let here: Vec<Profile> = [200.0, 205.0, 195.0, 900.0].map(|us| measured("new", us)).into();
        let known = measured("old", 100.0);
        let pair = |at: usize, settings| Pair { settings, known: &known, here: &here[at] };
        let deviation = |pairs: &[Pair<'_>]| {
            let made = profile(&one, &known, "new", pairs).expect("pairs");
            assert!(made.latency[0].mean_us < 300.0, "the kind with other threads does not count: {made:?}");
            libm::sqrt(made.latency[0].var_us2) / made.latency[0].mean_us
        };
        let few = deviation(&[pair(0, &one), pair(3, &many)]);
        let enough = deviation(&[pair(0, &one), pair(1, &one), pair(2, &one), pair(3, &many)]);
        assert!(enough < few, "{enough} {few}");
    }

    #[test]
    fn nothing_is_assumed_without_a_pair_nor_of_integers_nor_of_claims() {
        let fp32 = settings("fp32", 1);
        let (a, b) = (measured("old", 100.0), measured("new", 250.0));
        let pairs = [Pair { settings: &fp32, known: &a, here: &b }];
        assert!(profile(&fp32, &a, "new", &[]).is_none());
        assert!(profile(&settings("int8", 1), &a, "new", &pairs).is_none());
        let on_gpu = VariantSettings { processor: Processor::Cuda(0), ..settings("fp32", 1) };
        assert!(profile(&on_gpu, &a, "new", &pairs).is_none(), "cores say nothing of a GPU");
        let mut claimed = a.clone();
        claimed.accuracy.provenance = Provenance::Declared;
        assert!(profile(&fp32, &claimed, "new", &pairs).is_none());
        let estimated = profile(&fp32, &a, "new", &pairs).expect("a pair");
        assert!(profile(&fp32, &estimated, "third", &pairs).is_none(), "no estimate of an estimate");
    }
}
