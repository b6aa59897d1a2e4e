//! Variants out of files of profiles: what this project's profiler exports, and what others published.

use super::file::{Assumed, Import};
use modelless_decision::RunModel;
use modelless_types::{Accuracy, BatchPoint, Profile, StageTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Scatter of what was published without one: standard deviation over mean.
const SCATTER: f64 = 0.02;
/// From the mean to the 99th percentile of a normal distribution, in standard deviations.
const Z99: f64 = 2.326;

/// A variant on a class of devices, out of a file.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub(crate) variant: String,
    pub(crate) model: String,
    /// As the scenario calls it.
    pub(crate) class: String,
    pub(crate) accuracy: Accuracy,
    pub(crate) latency: Vec<BatchPoint>,
    pub(crate) decode: StageTime,
    pub(crate) decoded: Vec<f64>,
    pub(crate) prepare: StageTime,
    pub(crate) memory_mib: f64,
    pub(crate) load_ms: f64,
    pub(crate) max_batch: u32,
    /// What nodes go by at first, where `latency` is what batches took.
    pub(crate) profiled: Option<RunModel>,
}

/// How long things took on a node that serves, at the sizes that its profile has.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) latency: Vec<BatchPoint>,
    pub(crate) decode: StageTime,
    /// By evenly spaced parts of all, where that was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) decoded: Vec<f64>,
    pub(crate) prepare: StageTime,
}

/// What of a file a scenario wants.
pub(crate) fn rows(import: &Import, text: &str) -> Result<Vec<Row>, String> {
    let all = if text.trim_start().starts_with('{') {
        exported(import, text)?
    } else {
        let head = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
        match head.split(',').next() {
            Some("task") => published(import, text)?,
            Some("variant") => linear(import, text)?,
            _ => return Err(format!("{} is no file of profiles that is known here", import.file)),
        }
    };
    if let Some(missing) = import.only.iter().find(|name| !all.iter().any(|row| row.variant == **name)) {
        let mut known: Vec<&str> = all.iter().map(|row| row.variant.as_str()).collect();
        known.dedup();
        return Err(format!("{} has no variant {missing}; it has {}", import.file, known.join(", ")));
    }
    let wanted: Vec<Row> = all.into_iter().filter(|row| import.wants(&row.variant)).collect();
    if wanted.is_empty() {
        return Err(format!("{} has nothing of the classes {:?}", import.file, import.classes.keys()));
    }
    Ok(wanted)
}

impl Import {
    fn assumed(&self, variant: &str) -> Assumed {
        let fits = self.assume.iter().filter(|(start, _)| variant.starts_with(start.as_str()));
        fits.max_by_key(|(start, _)| start.len()).map(|(_, assumed)| *assumed).unwrap_or_default()
    }

    fn wants(&self, variant: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == variant)
    }

    fn lacks(&self, variant: &str, what: &str) -> String {
        format!("{} does not tell {what} of {variant}: write it under `assume`", self.file)
    }

    /// Of what is wanted; nobody looks at these of the others.
    fn memory_and_load(&self, variant: &str) -> Result<(f64, f64), String> {
        if !self.wants(variant) {
            return Ok((0.0, 0.0));
        }
        let assumed = self.assumed(variant);
        let memory = assumed.memory_mib.ok_or_else(|| self.lacks(variant, "memory_mib"))?;
        let load = assumed.load_ms.ok_or_else(|| self.lacks(variant, "load_ms"))?;
        Ok((float(memory), load))
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
fn float(n: u64) -> f64 {
    n as f64
}

fn point(batch: u32, mean_us: f64, sd: f64) -> BatchPoint {
    BatchPoint { batch, mean_us, var_us2: sd * sd, p99_us: mean_us + Z99 * sd, samples: 1 }
}

/// What `modelless profile export` writes.
fn exported(import: &Import, text: &str) -> Result<Vec<Row>, String> {
    #[derive(Deserialize)]
    struct Exported {
        format: String,
        version: u32,
        profiles: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        model: String,
        variant: String,
        profile: Profile,
        /// How long things truly take, where that is known besides the profile.
        #[serde(default)]
        seen: Option<Seen>,
    }
    let file: Exported = serde_json::from_str(text).map_err(|e| format!("{}: {e}", import.file))?;
    if file.format != "modelless-profiles" || file.version != 1 {
        return Err(format!("{} is not of the form modelless-profiles, version 1", import.file));
    }
    let row = |entry: Entry| {
        let class = import.classes.get(&entry.profile.device_class)?.clone();
        let assumed = import.assumed(&entry.variant);
        let profiled = entry.seen.as_ref().and_then(|_| RunModel::from_profile(&entry.profile));
        let Profile { latency, decode, prepare, memory, load_time, accuracy, .. } = entry.profile;
        let profile = Seen { latency, decode, decoded: Vec::new(), prepare };
        let Seen { latency, decode, decoded, prepare } = entry.seen.unwrap_or(profile);
        Some(Row {
            model: if entry.model.is_empty() { entry.variant.clone() } else { entry.model },
            variant: entry.variant,
            class,
            accuracy: accuracy.value,
            max_batch: assumed.max_batch.unwrap_or(latency.last()?.batch),
            latency,
            decode,
            decoded,
            prepare,
            profiled,
            memory_mib: assumed.memory_mib.map_or(float(memory.0) / 1_048_576.0, float),
            load_ms: assumed.load_ms.unwrap_or_else(|| load_time.as_millis_f64()),
        })
    };
    Ok(file.profiles.into_iter().filter_map(row).collect())
}

/// A line of a table: cells by the names in the head, and where it stands.
struct Line<'a> {
    cells: BTreeMap<&'a str, &'a str>,
    at: String,
}

impl<'a> Line<'a> {
    fn text(&self, name: &str) -> Result<&'a str, String> {
        self.cells.get(name).copied().ok_or_else(|| format!("{}: there is no {name}", self.at))
    }

    fn number(&self, name: &str) -> Result<f64, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("{}: {name} is {text:?}, no number", self.at))
    }
}

/// A table of cells without quotes; lines that begin with `#` are for people.
fn lines<'a>(file: &str, text: &'a str) -> Vec<Line<'a>> {
    let mut all =
        text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let head: Vec<&str> = all.next().map(|(_, line)| line.split(',').collect()).unwrap_or_default();
    let line = |(number, line): (usize, &'a str)| Line {
        cells: head.iter().copied().zip(line.split(',')).collect(),
        at: format!("{file}:{}", number + 1),
    };
    all.map(line).collect()
}

/// `nvidia_convnets.csv`: mean and 99th percentile by batch. The name of a variant tells its backend and precision.
fn published(import: &Import, text: &str) -> Result<Vec<Row>, String> {
    let mut found: BTreeMap<(String, String), (Accuracy, BTreeMap<u32, BatchPoint>)> = BTreeMap::new();
    for line in lines(&import.file, text) {
        let Some(class) = import.classes.get(line.text("gpu")?) else { continue };
        let backend = if line.text("accel")? == "TensorRT" { "trt" } else { "torch" };
        let precision = match line.text("precision")? {
            "Mixed Precision" => "amp".to_owned(),
            other => other.to_lowercase(),
        };
        let name = format!("{}-{backend}-{precision}", line.text("variant")?);
        let batch = line.text("batch")?.parse().map_err(|_| format!("{}: no batch size", line.at))?;
        let mean_us = line.number("avg_ms")? * 1e3;
        let beyond = line.number("p99_ms")? * 1e3 - mean_us;
        let sd = if beyond > 0.0 { beyond / Z99 } else { SCATTER * mean_us };
        let accuracy = Accuracy::floor_from_f64(line.number("metric")? / 100.0);
        let accuracy = accuracy.ok_or_else(|| format!("{}: the accuracy is no percentage", line.at))?;
        let known = found.entry((name, class.clone())).or_insert((accuracy, BTreeMap::new()));
        known.1.insert(batch, point(batch, mean_us, sd));
    }
    let row = |((variant, class), (accuracy, points)): ((String, String), (Accuracy, BTreeMap<_, _>))| {
        let (memory_mib, load_ms) = import.memory_and_load(&variant)?;
        let latency: Vec<BatchPoint> = points.into_values().collect();
        let largest = latency.last().map_or(1, |point| point.batch);
        Ok(Row {
            model: variant.clone(),
            max_batch: import.assumed(&variant).max_batch.unwrap_or(largest),
            variant,
            class,
            accuracy,
            latency,
            decode: StageTime::default(),
            decoded: Vec::new(),
            prepare: StageTime::default(),
            memory_mib,
            load_ms,
            profiled: None,
        })
    };
    found.into_iter().map(row).collect()
}

/// `infaas_resnet50.csv`: times on a line, with load times.
fn linear(import: &Import, text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for line in lines(&import.file, text) {
        let Some(class) = import.classes.get(line.text("hardware")?) else { continue };
        let variant = line.text("variant")?.to_owned();
        let assumed = import.assumed(&variant);
        let (slope, intercept) = (line.number("slope_ms")?, line.number("intercept_ms")?);
        let told = line.text("max_batch")?.parse().ok();
        let max_batch: u32 = assumed.max_batch.or(told).unwrap_or(64);
        let at = |batch: u32| {
            let mean_us = 1e3 * (slope * f64::from(batch) + intercept);
            point(batch, mean_us, SCATTER * mean_us)
        };
        if !import.wants(&variant) {
            continue;
        }
        let accuracy = assumed.accuracy.and_then(Accuracy::floor_from_f64);
        let memory_mib = assumed.memory_mib.ok_or_else(|| import.lacks(&variant, "memory_mib"))?;
        rows.push(Row {
            model: variant.clone(),
            class: class.clone(),
            accuracy: accuracy.ok_or_else(|| import.lacks(&variant, "accuracy"))?,
            latency: if max_batch > 1 { vec![at(1), at(max_batch)] } else { vec![at(1)] },
            decode: StageTime::default(),
            decoded: Vec::new(),
            prepare: StageTime::default(),
            memory_mib: float(memory_mib),
            load_ms: assumed.load_ms.unwrap_or(line.number("load_ms")?),
            max_batch,
            variant,
            profiled: None,
        });
    }
    Ok(rows)
}
