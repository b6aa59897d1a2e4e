//! Measurements.

use modelless_decision::steady;
use modelless_types::{AccuracyMeasure, BatchPoint, PointDetail, Profile, Provenance, StageTime, Unsteady};
use serde_json::{Map, Value, json};

pub(super) fn profile(profile: &Profile) -> Value {
    let from = profile.latency_provenance;
    let point = |point: &BatchPoint| {
        let mut shown = self::point(point);
        // Not known of profiles that were stored by older versions.
        if let (Some(shown), Some(more)) =
            (shown.as_object_mut(), profile.detail.points.iter().find(|more| more.batch == point.batch))
        {
            shown.extend(detail(more));
        }
        shown
    };
    let largest = profile.detail.largest.as_ref();
    json!({
        "device_class": profile.device_class,
        "coarse": profile.detail.coarse,
        "part_of_set": profile.detail.part_of_set,
        "unsteady": profile.detail.unsteady.as_ref().map(unsteady),
        "warnings": profile.detail.doubts,
        "largest_batch": largest.map(|largest| json!({"batch": largest.batch, "why": largest.why})),
        "latency": {
            "provenance": from,
            "by_batch": profile.latency.iter().map(point).collect::<Vec<_>>(),
        },
        "decode": stage(&profile.decode, from),
        "prepare": stage(&profile.prepare, from),
        // Taken in the same run as the latencies, so known in the same way.
        "memory": {"bytes": profile.memory.0, "peak_bytes": profile.peak.map(|peak| peak.0), "provenance": from},
        "load": {
            "ms": profile.load_time.as_millis_f64(),
            "cold_ms": profile.detail.load_cold.map(modelless_types::Micros::as_millis_f64),
            "provenance": from,
        },
        "accuracy": accuracy(&profile.accuracy),
        "also": profile.also.iter().map(accuracy).collect::<Vec<_>>(),
    })
}

/// Shares with as many digits as say something.
fn unsteady(seen: &Unsteady) -> Value {
    let share = |share: f64| (share * 1_000.0).round() / 1_000.0;
    json!({
        "why": steady::reason(seen),
        "sizes": share(seen.sizes),
        "same_work": share(seen.same_work),
        "stolen": share(seen.stolen),
        "tries": seen.tries,
        "left": seen.left,
    })
}

fn point(point: &BatchPoint) -> Value {
    json!({
        "batch": point.batch,
        "mean_ms": millis(point.mean_us),
        "deviation_ms": millis(point.var_us2.max(0.0).sqrt()),
        "p99_ms": millis(point.p99_us),
        "samples": point.samples,
    })
}

fn detail(more: &PointDetail) -> Map<String, Value> {
    let peak = more.peak.map(|peak| peak.0);
    let all = [
        ("series", json!(more.rounds)),
        ("median_ms", json!(millis(more.median_us))),
        ("spread_ms", json!(millis(more.spread_us))),
        ("outliers", json!(more.outliers)),
        ("worst_ms", json!(millis(more.worst_us))),
        ("peak_bytes", json!(peak)),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

fn stage(stage: &StageTime, from: Provenance) -> Value {
    if stage.samples == 0 {
        return Value::Null; // not measured, which is not zero
    }
    json!({
        "mean_ms": millis(stage.mean_us),
        "deviation_ms": millis(stage.var_us2.max(0.0).sqrt()),
        "samples": stage.samples,
        "provenance": from,
    })
}

/// An accuracy with the set it was measured on and its 95 % interval.
pub(super) fn accuracy(measure: &AccuracyMeasure) -> Value {
    json!({
        "value": measure.value.as_f64(),
        "interval": [measure.low.as_f64(), measure.high.as_f64()],
        "samples": measure.samples,
        "set": measure.set,
        "provenance": measure.provenance,
        "device_class": measure.device_class,
        "command": measure.command,
    })
}

/// To the microsecond's tenth: more digits would claim more than was measured.
fn millis(us: f64) -> f64 {
    (us * 10.0).round() / 10_000.0
}
