//! Profiles as a table for other programs: a row for each batch size, columns as `docs/profiles.md` names them.
//!
//! Numbers are written so that they are read back to the last bit. What a table has no place for is left out: accuracies
//! measured elsewhere (`also`) and, of the settings, what only GPUs and strings need.

use modelless_gateway::{ProfileEntry, ProfileFile, Through};
use modelless_types::{
    Accuracy, AccuracyMeasure, BatchPoint, Bytes, Detail, Engine, Largest, Micros, Optimisation, PointDetail,
    Processor, Profile, Provenance, StageTime, Unsteady, VariantSettings,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

const COLUMNS: [&str; 58] = [
    "task",
    "model",
    "model_version",
    "variant",
    "artefact_sha256",
    "engine",
    "precision",
    "threads",
    "max_batch",
    "optimisation",
    "processor",
    "device_class",
    "provenance",
    "coarse",
    "tail",
    "batch",
    "mean_us",
    "var_us2",
    "p99_us",
    "samples",
    "series",
    "median_us",
    "spread_us",
    "outliers",
    "worst_us",
    "peak_bytes_at_batch",
    "memory_bytes",
    "peak_bytes",
    "load_us",
    "load_cold_us",
    "largest_batch",
    "largest_batch_why",
    "decode_mean_us",
    "decode_var_us2",
    "decode_samples",
    "prepare_mean_us",
    "prepare_var_us2",
    "prepare_samples",
    "accuracy_ppm",
    "accuracy_low_ppm",
    "accuracy_high_ppm",
    "accuracy_samples",
    PART,
    LENGTH,
    "accuracy_set",
    "accuracy_provenance",
    "accuracy_device_class",
    "accuracy_command",
    ADAPTER,
    TOKENIZER,
    LABELS,
    UNSTEADY[0],
    UNSTEADY[1],
    UNSTEADY[2],
    UNSTEADY[3],
    UNSTEADY[4],
    "format",
    "version",
];

const PART: &str = "accuracy_part_of_set";
/// Empty where items do not differ in length.
const LENGTH: &str = "length";
/// Empty for a steady minute.
const UNSTEADY: [&str; 5] =
    ["unsteady_sizes", "unsteady_same_work", "unsteady_stolen", "unsteady_tries", "unsteady_left"];
const ADAPTER: &str = "adapter_sha256";
const TOKENIZER: &str = "tokenizer_sha256";
const LABELS: &str = "labels_sha256";
/// Tables of before they were written have no such columns.
const LATER: [&str; 10] = [
    PART,
    LENGTH,
    ADAPTER,
    TOKENIZER,
    LABELS,
    UNSTEADY[0],
    UNSTEADY[1],
    UNSTEADY[2],
    UNSTEADY[3],
    UNSTEADY[4],
];

pub(super) fn write(file: &ProfileFile) -> String {
    let mut out = COLUMNS.join(",") + "\r\n";
    for entry in &file.profiles {
        for point in &entry.profile.latency {
            let mut cells = row(entry, point);
            cells.push(file.format.clone());
            cells.push(file.version.to_string());
            out.push_str(&cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(","));
            out.push_str("\r\n");
        }
    }
    out
}

fn row(entry: &ProfileEntry, point: &BatchPoint) -> Vec<String> {
    let ProfileEntry { task, model, model_version, variant, artefact_sha256, settings, through, profile } =
        entry;
    let Profile {
        device_class,
        latency_provenance,
        decode,
        prepare,
        memory,
        peak,
        load_time,
        accuracy,
        detail,
        ..
    } = profile;
    let more = detail.points.iter().find(|more| more.batch == point.batch);
    let opt = |value: Option<String>| value.unwrap_or_default();
    let of = |setting: fn(&VariantSettings) -> String| opt(settings.as_ref().map(setting));
    let more = |figure: fn(&PointDetail) -> String| opt(more.map(figure));
    let unsteady = |figure: fn(&Unsteady) -> String| opt(detail.unsteady.as_ref().map(figure));
    vec![
        task.clone(),
        model.clone(),
        model_version.to_string(),
        variant.clone(),
        artefact_sha256.clone(),
        of(|s| name(&s.engine)),
        of(|s| s.precision.clone()),
        of(|s| s.threads.to_string()),
        of(|s| s.max_batch.to_string()),
        of(|s| name(&s.optimisation)),
        of(|s| s.processor.to_string()),
        device_class.clone(),
        latency_provenance.to_string(),
        detail.coarse.to_string(),
        detail.tail.to_string(),
        point.batch.to_string(),
        point.mean_us.to_string(),
        point.var_us2.to_string(),
        point.p99_us.to_string(),
        point.samples.to_string(),
        more(|m| m.rounds.to_string()),
        more(|m| m.median_us.to_string()),
        more(|m| m.spread_us.to_string()),
        more(|m| m.outliers.to_string()),
        more(|m| m.worst_us.to_string()),
        more(|m| m.peak.map(|peak| peak.0.to_string()).unwrap_or_default()),
        memory.0.to_string(),
        opt(peak.map(|peak| peak.0.to_string())),
        load_time.0.to_string(),
        opt(detail.load_cold.map(|time| time.0.to_string())),
        opt(detail.largest.as_ref().map(|largest| largest.batch.to_string())),
        opt(detail.largest.as_ref().map(|largest| largest.why.clone())),
        decode.mean_us.to_string(),
        decode.var_us2.to_string(),
        decode.samples.to_string(),
        prepare.mean_us.to_string(),
        prepare.var_us2.to_string(),
        prepare.samples.to_string(),
        accuracy.value.ppm().to_string(),
        accuracy.low.ppm().to_string(),
        accuracy.high.ppm().to_string(),
        accuracy.samples.to_string(),
        detail.part_of_set.to_string(),
        opt(detail.length.map(|length| length.to_string())),
        accuracy.set.clone(),
        accuracy.provenance.to_string(),
        accuracy.device_class.clone(),
        accuracy.command.clone(),
        opt(through.adapter_sha256.clone()),
        opt(through.tokenizer_sha256.clone()),
        opt(through.labels_sha256.clone()),
        unsteady(|u| u.sizes.to_string()),
        unsteady(|u| u.same_work.to_string()),
        unsteady(|u| u.stolen.to_string()),
        unsteady(|u| u.tries.to_string()),
        unsteady(|u| u.left.to_string()),
    ]
}

/// As JSON calls it.
fn name(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn named<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_value(Value::String(text.to_owned())).ok()
}

fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

pub(super) fn read(text: &str) -> Result<ProfileFile, String> {
    let mut lines = rows(text)?.into_iter();
    let head = lines.next().ok_or("it is empty")?.1;
    let at: BTreeMap<&str, usize> = head.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
    if let Some(missing) = COLUMNS.iter().find(|name| !LATER.contains(*name) && !at.contains_key(**name)) {
        return Err(format!("it has no column {missing}; docs/profiles.md names all of them"));
    }
    let mut file: Option<ProfileFile> = None;
    for (line, cells) in lines {
        let row = Row { line, at: &at, cells: &cells };
        let file = match &mut file {
            Some(file) => file,
            None => file.insert(ProfileFile {
                format: row.text("format")?.to_owned(),
                version: row.number("version")?,
                profiles: Vec::new(),
            }),
        };
        let (point, more) = (row.point()?, row.more()?);
        let entry = row.entry()?;
        let same = |known: &ProfileEntry| {
            let key = |of: &ProfileEntry| {
                (of.task.clone(), of.variant.clone(), of.profile.device_class.clone(), of.model_version)
            };
            key(known) == key(&entry)
        };
        let at = file.profiles.iter().position(same).unwrap_or(file.profiles.len());
        if at == file.profiles.len() {
            file.profiles.push(entry);
        }
        let profile = &mut file.profiles[at].profile;
        profile.latency.push(point);
        profile.detail.points.extend(more);
    }
    Ok(file.unwrap_or_else(|| ProfileFile::new(Vec::new())))
}

struct Row<'a> {
    line: usize,
    at: &'a BTreeMap<&'a str, usize>,
    cells: &'a [String],
}

impl Row<'_> {
    fn text(&self, column: &str) -> Result<&str, String> {
        let cell = self.at.get(column).and_then(|at| self.cells.get(*at));
        cell.map(String::as_str).ok_or_else(|| format!("line {}: it has no {column}", self.line))
    }

    fn wrong(&self, column: &str) -> String {
        let cell = self.text(column).unwrap_or_default();
        format!("line {}: {column} is {cell:?}, which it cannot be", self.line)
    }

    fn number<T: std::str::FromStr>(&self, column: &str) -> Result<T, String> {
        self.text(column)?.parse().map_err(|_| self.wrong(column))
    }

    /// What may be left empty.
    fn maybe<T: std::str::FromStr>(&self, column: &str) -> Result<Option<T>, String> {
        if self.text(column)?.is_empty() { Ok(None) } else { self.number(column).map(Some) }
    }

    /// Where there is such a column.
    fn later(&self, column: &str) -> Result<Option<String>, String> {
        if self.at.contains_key(column) { self.maybe(column) } else { Ok(None) }
    }

    fn named<T: DeserializeOwned>(&self, column: &str) -> Result<T, String> {
        named(self.text(column)?).ok_or_else(|| self.wrong(column))
    }

    fn ppm(&self, column: &str) -> Result<Accuracy, String> {
        Accuracy::from_ppm(self.number(column)?).ok_or_else(|| self.wrong(column))
    }

    fn point(&self) -> Result<BatchPoint, String> {
        Ok(BatchPoint {
            batch: self.number("batch")?,
            mean_us: self.number("mean_us")?,
            var_us2: self.number("var_us2")?,
            p99_us: self.number("p99_us")?,
            samples: self.number("samples")?,
        })
    }

    fn more(&self) -> Result<Option<PointDetail>, String> {
        let Some(rounds) = self.maybe("series")? else { return Ok(None) };
        Ok(Some(PointDetail {
            batch: self.number("batch")?,
            rounds,
            median_us: self.number("median_us")?,
            spread_us: self.number("spread_us")?,
            outliers: self.number("outliers")?,
            worst_us: self.number("worst_us")?,
            peak: self.maybe("peak_bytes_at_batch")?.map(Bytes),
        }))
    }

    fn unsteady(&self) -> Result<Option<Unsteady>, String> {
        let [sizes, same_work, stolen, tries, left] = UNSTEADY;
        if self.later(sizes)?.is_none() {
            return Ok(None);
        }
        Ok(Some(Unsteady {
            sizes: self.number(sizes)?,
            same_work: self.number(same_work)?,
            stolen: self.number(stolen)?,
            tries: self.number(tries)?,
            left: self.number(left)?,
        }))
    }

    fn stage(&self, of: &str) -> Result<StageTime, String> {
        Ok(StageTime {
            mean_us: self.number(&format!("{of}_mean_us"))?,
            var_us2: self.number(&format!("{of}_var_us2"))?,
            samples: self.number(&format!("{of}_samples"))?,
        })
    }

    fn settings(&self) -> Result<Option<VariantSettings>, String> {
        if self.text("engine")?.is_empty() {
            return Ok(None);
        }
        let engine: Engine = self.named("engine")?;
        let mut settings = VariantSettings::new(engine, self.text("precision")?, self.number("max_batch")?);
        settings.threads = self.number("threads")?;
        settings.optimisation = self.named::<Optimisation>("optimisation")?;
        settings.processor = self.named::<Processor>("processor")?;
        Ok(Some(settings))
    }

    /// What is the same in all rows of one profile; without its points.
    fn entry(&self) -> Result<ProfileEntry, String> {
        let text = |column| self.text(column).map(str::to_owned);
        let largest = match self.maybe("largest_batch")? {
            Some(batch) => Some(Largest { batch, why: text("largest_batch_why")? }),
            None => None,
        };
        Ok(ProfileEntry {
            task: text("task")?,
            model: text("model")?,
            model_version: self.number("model_version")?,
            variant: text("variant")?,
            artefact_sha256: text("artefact_sha256")?,
            settings: self.settings()?,
            through: Through {
                adapter_sha256: self.later(ADAPTER)?,
                tokenizer_sha256: self.later(TOKENIZER)?,
                labels_sha256: self.later(LABELS)?,
            },
            profile: Profile {
                device_class: text("device_class")?,
                latency: Vec::new(),
                latency_provenance: self.named::<Provenance>("provenance")?,
                decode: self.stage("decode")?,
                prepare: self.stage("prepare")?,
                memory: Bytes(self.number("memory_bytes")?),
                peak: self.maybe("peak_bytes")?.map(Bytes),
                load_time: Micros(self.number("load_us")?),
                accuracy: AccuracyMeasure {
                    value: self.ppm("accuracy_ppm")?,
                    low: self.ppm("accuracy_low_ppm")?,
                    high: self.ppm("accuracy_high_ppm")?,
                    samples: self.number("accuracy_samples")?,
                    set: text("accuracy_set")?,
                    provenance: self.named("accuracy_provenance")?,
                    device_class: text("accuracy_device_class")?,
                    command: text("accuracy_command")?,
                },
                also: Vec::new(),
                detail: Detail {
                    coarse: self.number("coarse")?,
                    part_of_set: self.at.contains_key(PART) && self.number(PART)?,
                    doubts: Vec::new(),
                    tail: self.number("tail")?,
                    load_cold: self.maybe("load_cold_us")?.map(Micros),
                    largest,
                    length: if self.at.contains_key(LENGTH) { self.maybe(LENGTH)? } else { None },
                    points: Vec::new(),
                    unsteady: self.unsteady()?,
                },
            },
        })
    }
}

/// The rows of a table with the line that each begins on. Cells in quotes may hold anything, doubled quotes included.
fn rows(text: &str) -> Result<Vec<(usize, Vec<String>)>, String> {
    let (mut rows, mut cells, mut cell) = (Vec::new(), Vec::new(), String::new());
    let (mut line, mut began, mut in_quotes) = (1, 1, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        match c {
            '"' if in_quotes && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' => in_quotes = !in_quotes,
            ',' if !in_quotes => cells.push(std::mem::take(&mut cell)),
            '\r' if !in_quotes => {}
            '\n' if !in_quotes => {
                cells.push(std::mem::take(&mut cell));
                let row = std::mem::take(&mut cells);
                if row != [""] {
                    rows.push((began, row));
                }
                began = line;
            }
            other => cell.push(other),
        }
    }
    if in_quotes {
        return Err(format!("line {began}: a quotation mark is opened and never closed"));
    }
    if !cell.is_empty() || !cells.is_empty() {
        cells.push(cell);
        rows.push((began, cells));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::entry;
    use super::*;

    #[test]
    fn the_head_names_every_column_once_and_rows_have_as_many_cells() {
        let text = write(&ProfileFile::new(vec![entry("a")]));
        let rows = rows(&text).unwrap();
        assert_eq!(rows.len(), 3, "a head and two batch sizes");
        assert!(rows.iter().all(|(_, cells)| cells.len() == COLUMNS.len()));
        let mut names = COLUMNS.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COLUMNS.len());
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_line() {
        let good = write(&ProfileFile::new(vec![entry("a")]));
        let said = |text: &str| read(text).unwrap_err();
        assert!(said(&good.replace("mean_us,", "")).contains("no column mean_us"));
        let bad = good.replacen("1000.25", "fast", 1);
        assert!(said(&bad).contains("line 2: mean_us is \"fast\""), "{}", said(&bad));
        assert!(said(&good.replacen("900000", "9000000", 1)).contains("accuracy_ppm"));
        assert!(said("a,\"b").contains("quotation mark"));
        assert!(said("").contains("empty"));
    }
}
