//! Profiles that tests and comparisons share.
//!
//! The Fashion-MNIST ladder: six models in fp32 and int8. Accuracies and the times at batch 1 and 32 were measured
//! (ONNX Runtime, one thread, medians of single runs on one machine); sizes between lie on the line. The scatter, the
//! load times and the memory beyond the weights are assumptions, written down here.

use crate::scenario::{TaskSpec, VariantSpec};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, Engine, Goals, Micros, ModelId, SpaceId, StageTime, TaskId, VariantId,
};
use std::collections::BTreeMap;

/// The ladder's task.
pub const FASHION: TaskId = TaskId(1);

/// The space of its answers.
pub const FASHION_SPACE: SpaceId = SpaceId(1);

/// Scatter assumed of device times: standard deviation over mean.
const SCATTER: f64 = 0.08;

/// Name, accuracy in ppm, KiB of the file, microseconds at batch 1 and at batch 32.
const LADDER: [(&str, u32, u64, f64, f64); 12] = [
    ("linear-fp32", 838_100, 32, 8.0, 20.0),
    ("linear-int8", 837_100, 10, 9.0, 20.0),
    ("mlp_s-fp32", 879_200, 204, 10.0, 30.0),
    ("mlp_s-int8", 879_500, 55, 11.0, 30.0),
    ("mlp_l-fp32", 891_800, 2_144, 53.0, 210.0),
    ("mlp_l-int8", 891_900, 553, 24.0, 60.0),
    ("cnn_s-fp32", 892_500, 38, 20.0, 400.0),
    ("cnn_s-int8", 892_500, 16, 35.0, 770.0),
    ("cnn_m-fp32", 915_500, 1_688, 85.0, 1_800.0),
    ("cnn_m-int8", 916_100, 433, 55.0, 1_300.0),
    ("cnn_l-fp32", 934_800, 2_686, 365.0, 9_500.0),
    ("cnn_l-int8", 934_600, 704, 131.0, 4_000.0),
];

/// The whole ladder. Ordinal `i` is the `i`-th of the list, variant id `i + 1`, model id one per pair.
pub fn fashion_mnist() -> TaskSpec {
    let variants = LADDER.iter().enumerate().map(|(at, &(name, ppm, kib, one, full))| {
        let ordinal = u8::try_from(at).expect("twelve variants");
        let id = u32::from(ordinal);
        VariantSpec {
            name: name.into(),
            id: VariantId(id + 1),
            model: ModelId(id / 2 + 1),
            engine: Engine::Onnx,
            ordinal,
            space: FASHION_SPACE,
            accuracy: Accuracy::from_ppm(ppm).expect("at most a million"),
            max_batch: 32,
            threads: 1,
            latency: vec![point(1, one), point(32, full)],
            decode: StageTime { mean_us: 5.0, var_us2: 1.0, samples: 0 },
            decoded: Vec::new(),
            prepare: StageTime { mean_us: 1.0, var_us2: 0.04, samples: 0 },
            // A session takes its weights twice (file and prepacked) and about 3 MiB besides.
            memory: Bytes(2 * kib * 1_024) + Bytes::from_mib(3),
            load_time: Micros(10_000 + 20 * kib),
            on: BTreeMap::new(),
        }
    });
    TaskSpec {
        id: FASHION,
        default_space: FASHION_SPACE,
        defaults: Goals { latency: Some(Micros::from_millis(100)), ..Goals::default() },
        batching: None,
        variants: variants.collect(),
    }
}

fn point(batch: u32, mean_us: f64) -> BatchPoint {
    let sd = SCATTER * mean_us;
    BatchPoint { batch, mean_us, var_us2: sd * sd, p99_us: mean_us + 2.33 * sd, samples: 1 }
}

/// A variant of the ladder by name.
pub fn fashion_variant(name: &str) -> Option<VariantSpec> {
    fashion_mnist().variants.into_iter().find(|v| v.name == name)
}
