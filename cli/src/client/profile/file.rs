//! Files of profiles, in JSON or in CSV.

use super::csv;
use anyhow::Context;
use modelless_gateway::ProfileFile;
use std::fs;
use std::path::Path;

fn is_csv(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"))
}

/// Writes it whole or not at all: beside, and then into place.
pub(crate) fn write(path: &Path, file: &ProfileFile) -> anyhow::Result<()> {
    let text = if is_csv(path) { csv::write(file) } else { serde_json::to_string_pretty(file)? + "\n" };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // What is left of it helps nobody; that it cannot be removed either adds nothing.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

pub(super) fn read(path: &Path) -> anyhow::Result<ProfileFile> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: ProfileFile = if is_csv(path) {
        csv::read(&text).map_err(anyhow::Error::msg).with_context(|| path.display().to_string())?
    } else {
        serde_json::from_str(&text).with_context(|| format!("{} holds no profiles", path.display()))?
    };
    file.check().map_err(anyhow::Error::msg).with_context(|| path.display().to_string())?;
    Ok(file)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use modelless_gateway::{ProfileEntry, Through};
    use modelless_types::{
        Accuracy, AccuracyMeasure, BatchPoint, Bytes, Detail, Engine, Largest, Micros, PointDetail, Profile,
        Provenance, StageTime, Unsteady, VariantSettings,
    };

    /// With something in every place.
    pub(crate) fn entry(variant: &str) -> ProfileEntry {
        let ppm = |ppm| Accuracy::from_ppm(ppm).unwrap();
        let point = |batch: u32| BatchPoint {
            batch,
            mean_us: 1_000.25 * f64::from(batch),
            var_us2: 16.5,
            p99_us: 1_200.125 * f64::from(batch),
            samples: 40,
        };
        let more = |batch: u32| PointDetail {
            batch,
            rounds: 3,
            median_us: 999.5,
            spread_us: 12.25,
            outliers: 2,
            worst_us: 5_000.0,
            peak: (batch < 8).then_some(Bytes(1 << 20)),
        };
        let profile = Profile {
            device_class: "cpu:a, \"fast\":2".to_owned(),
            latency: vec![point(1), point(8)],
            latency_provenance: Provenance::Measured,
            decode: StageTime { mean_us: 20.5, var_us2: 1.25, samples: 50 },
            prepare: StageTime::default(),
            memory: Bytes(3 << 20),
            peak: Some(Bytes(5 << 20)),
            load_time: Micros(120_000),
            accuracy: AccuracyMeasure {
                value: ppm(900_000),
                low: ppm(890_000),
                high: ppm(910_000),
                samples: 2_000,
                set: "a set, of ours".to_owned(),
                provenance: Provenance::Measured,
                device_class: "cpu:a, \"fast\":2".to_owned(),
                command: "modelless up".to_owned(),
            },
            also: vec![],
            detail: Detail {
                coarse: false,
                part_of_set: variant.starts_with('b'),
                doubts: Vec::new(),
                tail: true,
                load_cold: Some(Micros(300_000)),
                largest: Some(Largest { batch: 8, why: "a batch of 16: killed".to_owned() }),
                length: variant.starts_with('b').then_some(24),
                points: vec![more(1), more(8)],
                unsteady: variant.starts_with('b').then_some(Unsteady {
                    sizes: 0.225,
                    same_work: 0.31,
                    stolen: 0.125,
                    tries: 2,
                    left: 1,
                }),
            },
        };
        ProfileEntry {
            task: "t".to_owned(),
            model: "m".to_owned(),
            model_version: 2,
            variant: variant.to_owned(),
            artefact_sha256: "ab".repeat(32),
            settings: Some(VariantSettings::new(Engine::Onnx, "fp32", 32)),
            through: Through {
                adapter_sha256: Some("cd".repeat(32)),
                tokenizer_sha256: variant.starts_with('b').then(|| "ef".repeat(32)),
                labels_sha256: Some("01".repeat(32)),
            },
            profile,
        }
    }

    #[test]
    fn what_is_written_is_read_back_to_the_last_bit() {
        let folder = modelless_testkit::temp_dir("profiles").unwrap();
        let file = ProfileFile::new(vec![entry("a-fp32"), entry("b, \"odd\"\nname")]);
        for name in ["all.json", "all.CSV"] {
            let path = folder.path().join(name);
            write(&path, &file).unwrap();
            assert_eq!(read(&path).unwrap(), file, "{name}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing lies beside");
    }

    #[test]
    fn what_is_no_file_of_profiles_is_refused_by_name() {
        let folder = modelless_testkit::temp_dir("profiles").unwrap();
        let path = folder.path().join("x.json");
        for (text, said) in [
            ("{}", "holds no profiles"),
            (r#"{"format": "other", "version": 1, "profiles": []}"#, "format"),
            (r#"{"format": "modelless-profiles", "version": 9, "profiles": []}"#, "version"),
        ] {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(error.contains(said) && error.contains("x.json"), "{error}");
        }
        assert!(write(&folder.path().join("no/such/x.json"), &ProfileFile::new(vec![])).is_err());
    }
}
