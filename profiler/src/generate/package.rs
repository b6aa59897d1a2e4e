//! The package that comes of it: `task.toml`, `models/*.toml` with their files, the set that accuracy is measured with, and
//! `generated.json`, which tells how everything was made, what was refused and why.
//!
//! Manifests are the author's with other variants in them, so whatever they say stays said. What another variant dominates is
//! kept, and a line above it tells by which.

use super::measured::Measured;
use super::run::{Outcome, Piece};
use super::{Base, Request, after, at, convert, digest};
use crate::error::Error;
use modelless_adapter::AdapterSpec;
use modelless_decision::frontier::{Point, dominated};
use modelless_types::{Engine, Optimisation, Processor, VariantSettings};
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A variant of the package.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// Unique in its task.
    pub name: String,
    /// The model it is of.
    pub model: String,
    /// Between the task and its tensors.
    pub adapter: AdapterSpec,
    /// How it is run.
    pub settings: VariantSettings,
    /// Its file.
    pub file: PathBuf,
    /// Its digest.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
    /// How it was made; `None` for those of the author.
    pub made: Option<Piece>,
    /// What stands in the manifest of the author.
    original: Option<Table>,
}

/// All that came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Generated {
    /// The variants, those of the author first.
    pub entries: Vec<Entry>,
    /// Every recipe and what became of it.
    pub pieces: Vec<Piece>,
}

/// Something in `generated.json`.
#[derive(Serialize)]
struct Told<'a> {
    variant: &'a str,
    model: &'a str,
    sha256: &'a str,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<&'a Piece>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a modelless_types::Profile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dominated_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<&'static str>,
    /// Why it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<&'a str>,
}

/// Puts what was made in its place, and writes everything but what is measured.
pub(super) fn place(request: &Request, bases: &[Base], pieces: Vec<Piece>) -> Result<Generated, Error> {
    let models = request.out.join("models");
    fs::create_dir_all(&models).map_err(at(&models))?;
    let mut entries = Vec::new();
    let originals = originals(request)?;
    for (variant, original) in request.model.variants.iter().zip(originals) {
        let name = renamed(request, &variant.name);
        let end = variant.file.extension().map_or("onnx".into(), |end| end.to_string_lossy().into_owned());
        let file = models.join(format!("{}.{end}", plain(&name)));
        bring(&variant.file, &file)?;
        entries.push(entry(
            name,
            request.model.name.clone(),
            &request.model.adapter,
            variant.settings(),
            file,
            original,
        )?);
    }
    let parent = &request.model.variants[request.parent];
    for piece in pieces.iter().filter(|piece| piece.outcome == Outcome::Made) {
        let Some(base) = bases.iter().find(|base| base.name == piece.base) else { continue };
        let Some(file) = &piece.file else { continue };
        let model = format!("{}{}", request.model.name, after("-", &base.name));
        let name = format!("{}-{}", renamed(request, &model), piece.recipe);
        if entries.iter().any(|known| known.name == name) {
            continue;
        }
        let engine = convert::engine_of(&piece.recipe);
        let path = models.join(format!("{}.{}", plain(&name), convert::end_of(engine)));
        bring(&request.work().join("made").join(file), &path)?;
        let settings = settings(&parent.settings(), engine, &piece.precision);
        let mut new = entry(name, model, &base.adapter, settings, path, None)?;
        new.made = Some(piece.clone());
        entries.push(new);
    }
    if let Some(tokenizer) = request.model.adapter.tokenizer() {
        bring(Path::new(tokenizer), &models.join(TOKENIZER))?;
    }
    let generated = Generated { entries, pieces };
    clear_earlier(request, &generated);
    write(request, &generated, &Measured::default())?;
    Ok(generated)
}

/// How it is run: as its parent, but for what its format cannot.
fn settings(parent: &VariantSettings, engine: Engine, precision: &str) -> VariantSettings {
    let processor = match (engine, parent.processor) {
        // TensorRT takes ONNX.
        (Engine::Torch, Processor::Tensorrt(number)) => Processor::Cuda(number),
        (_, processor) => processor,
    };
    VariantSettings { precision: precision.to_owned(), engine, processor, ..parent.clone() }
}

/// Takes out what an earlier run wrote and this one did not, or it would be registered with a set that is not its own. Only
/// what that run says it wrote: whatever else lies there is somebody's. That something cannot be removed is told by
/// registering.
fn clear_earlier(request: &Request, generated: &Generated) {
    let read = fs::read(request.out.join("generated.json")).unwrap_or_default();
    let earlier: serde_json::Value = serde_json::from_slice(&read).unwrap_or_default();
    let kept = |entry: &Entry| [entry.file.clone(), manifest_of(request, &entry.model)];
    let kept: BTreeSet<PathBuf> = generated.entries.iter().flat_map(kept).collect();
    for one in earlier["variants"].as_array().into_iter().flatten() {
        let (Some(variant), Some(model)) = (one["variant"].as_str(), one["model"].as_str()) else { continue };
        let file = |end: &str| request.out.join("models").join(format!("{}.{end}", plain(variant)));
        for path in [file("onnx"), file("pt"), manifest_of(request, model)] {
            if !kept.contains(&path) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn manifest_of(request: &Request, model: &str) -> PathBuf {
    request.out.join("models").join(format!("{}.toml", plain(model)))
}

/// What the tokenizer is called in the package.
const TOKENIZER: &str = "tokenizer.json";

fn entry(
    name: String,
    model: String,
    adapter: &AdapterSpec,
    settings: VariantSettings,
    file: PathBuf,
    original: Option<Table>,
) -> Result<Entry, Error> {
    let content = fs::read(&file).map_err(|source| Error::Read { path: file.clone(), source })?;
    let bytes = u64::try_from(content.len()).unwrap_or(u64::MAX);
    let sha256 = digest(&[&content]);
    Ok(Entry { name, model, adapter: adapter.clone(), settings, file, sha256, bytes, made: None, original })
}

/// Variants of a version of its own must not have the names of those that are there.
fn renamed(request: &Request, name: &str) -> String {
    let (model, version) = (&request.model.name, request.version);
    if version == request.model.version {
        return name.to_owned();
    }
    match name.strip_prefix(model.as_str()) {
        Some(rest) => format!("{model}.v{version}{rest}"),
        None => format!("{name}.v{version}"),
    }
}

fn plain(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars().map(|c| if fits(c) { c } else { '_' }).collect()
}

/// The variants as the author wrote them; those that stand there as `artefact` only are none.
fn originals(request: &Request) -> Result<Vec<Option<Table>>, Error> {
    let table = parse(request.model.path(), request.model.text())?;
    let mut written = match table.get("variants") {
        Some(Value::Array(all)) => all.iter().map(|one| one.as_table().cloned()).collect(),
        Some(_) | None => Vec::new(),
    };
    written.resize(request.model.variants.len(), None);
    Ok(written)
}

/// The same file under another name, by a link where that is possible. Appears in one rename.
fn bring(from: &Path, to: &Path) -> Result<(), Error> {
    let staged = staged(to);
    let _ = fs::remove_file(&staged);
    if fs::hard_link(from, &staged).is_err() {
        fs::copy(from, &staged).map_err(at(to))?;
    }
    // Where both are one file already, renaming leaves the second name.
    let renamed = fs::rename(&staged, to).map_err(at(to));
    let _ = fs::remove_file(&staged);
    renamed
}

fn save(path: &Path, content: &[u8]) -> Result<(), Error> {
    let staged = staged(path);
    let written = File::create(&staged).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&staged, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&staged);
    }
    written.map_err(at(path))
}

fn staged(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.part"))
}

/// Writes manifests, set and report with what is known by now.
pub fn write(request: &Request, generated: &Generated, measured: &Measured) -> Result<(), Error> {
    let sets = request.out.join("sets");
    fs::create_dir_all(&sets).map_err(at(&sets))?;
    save(&sets.join("accuracy.jsonl.gz"), &request.sets.accuracy.pack()?)?;
    save(&request.out.join("task.toml"), task(request)?.as_bytes())?;
    let marks = Marks::of(request, generated, measured);
    let mut models: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, entry) in generated.entries.iter().enumerate() {
        models.entry(&entry.model).or_default().push(at);
    }
    for (model, entries) in models {
        let path = manifest_of(request, model);
        match manifest(request, generated, &entries, (measured, &marks))? {
            Some(text) => save(&path, text.as_bytes())?,
            // Nothing of it is left to be registered.
            None => drop(fs::remove_file(&path)),
        }
    }
    save(&request.out.join("generated.json"), report(request, generated, measured, &marks).as_bytes())
}

/// What there is to say of each entry beside its figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Marks {
    /// Which other one is as good in everything, by the rule that whoever serves them goes by.
    pub dominated: Vec<Option<usize>>,
    /// Why it is no part of what is registered.
    pub left_out: Vec<Option<&'static str>>,
}

const FAILED: &str = "it could not be measured here";
const HALF: &str = "useful only on devices that compute in half precision, which was not seen to gain here";
/// Half precision gains where it takes so many hundredths less time, alone or in a batch. By less two measurements of one file
/// differ.
const GAIN_PERCENT: u64 = 5;
/// And where it takes no more than so many hundredths more in the other.
const LOSS_PERCENT: u64 = 2;

impl Marks {
    /// From what was measured.
    pub fn of(request: &Request, generated: &Generated, measured: &Measured) -> Self {
        let point = |entry: &Entry| Point::of(measured.profiles.get(&entry.name)?, entry.settings.max_batch);
        let parent = point(&generated.entries[request.parent]);
        let left_out: Vec<_> = generated
            .entries
            .iter()
            .map(|entry| {
                if measured.failed.contains_key(&entry.name) {
                    return Some(FAILED);
                }
                let half = entry.made.as_ref().is_some_and(|piece| piece.recipe == "fp16");
                let gain = || point(entry).zip(parent).is_some_and(|(own, parent)| gains(own, parent));
                (half && !gain()).then_some(HALF)
            })
            .collect();
        // Only what is offered can make another unwanted.
        let offered = generated.entries.iter().enumerate().filter(|(at, _)| left_out[*at].is_none());
        let (known, points): (Vec<usize>, Vec<Point>) =
            offered.filter_map(|(at, entry)| Some((at, point(entry)?))).unzip();
        let mut marked = vec![None; generated.entries.len()];
        for (at, by) in known.iter().zip(dominated(&points)) {
            marked[*at] = by.map(|by| known[by]);
        }
        Self { dominated: marked, left_out }
    }
}

/// Whether it is quicker by more than chance, alone or in its best batch, and no slower in the other.
fn gains(own: Point, parent: Point) -> bool {
    let within = |own: u64, percent: u64, parent: u64| {
        u128::from(own) * 100 <= u128::from(parent) * u128::from(percent)
    };
    let (gain, loss) = (100 - GAIN_PERCENT, 100 + LOSS_PERCENT);
    let both = |alone: u64, batch: u64| {
        within(own.latency, alone, parent.latency) && within(own.work, batch, parent.work)
    };
    both(gain, loss) || both(loss, gain)
}

fn parse(path: &Path, text: &str) -> Result<Table, Error> {
    let why = |error: toml::de::Error| Error::Manifest { path: path.to_owned(), why: error.to_string() };
    text.parse::<Table>().map_err(why)
}

fn text(table: &Table) -> Result<String, Error> {
    toml::to_string(table).map_err(|error| Error::Manifest {
        path: PathBuf::from("a manifest that was made"),
        why: error.to_string(),
    })
}

/// The task's manifest with the other set. What is known from elsewhere is not of these variants.
fn task(request: &Request) -> Result<String, Error> {
    let path = request.manifest.path();
    let read = fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let mut table = parse(&path, &read)?;
    table.remove("also");
    let mut set = Table::new();
    set.insert("name".to_owned(), request.sets.accuracy.name().into());
    set.insert("path".to_owned(), "sets/accuracy.jsonl.gz".into());
    table.insert("labelled-set".to_owned(), Value::Table(set));
    text(&table)
}

/// A model's manifest with the entries that are of it; `None` where all of them are left out.
fn manifest(
    request: &Request,
    generated: &Generated,
    entries: &[usize],
    (measured, marks): (&Measured, &Marks),
) -> Result<Option<String>, Error> {
    let Some(first) = entries.first().map(|at| &generated.entries[*at]) else { return Ok(None) };
    let mut table = parse(request.model.path(), request.model.text())?;
    for written_below in ["artefact", "variants"] {
        table.remove(written_below);
    }
    table.insert("name".to_owned(), first.model.as_str().into());
    table.insert("task".to_owned(), request.task.name.as_str().into());
    table.insert("version".to_owned(), i64::from(request.version).into());
    let mut adapter = first.adapter.clone();
    if adapter.tokenizer().is_some() {
        adapter.set_tokenizer(TOKENIZER.to_owned());
    }
    let adapter = Value::try_from(&adapter)
        .map_err(|error| Error::Manifest { path: request.model.path().to_owned(), why: error.to_string() })?;
    table.insert("adapter".to_owned(), adapter);
    let parent = &request.model.variants[request.parent];
    let mut made = format!(
        "# Made by `modelless variant generate` of {} (sha256 {}).\n# How each was made, and what was measured: generated.json.\n",
        parent.name, generated.entries[request.parent].sha256
    );
    made.push_str(&text(&table)?);
    let mut any = false;
    for &at in entries {
        let entry = &generated.entries[at];
        made.push('\n');
        for line in said(generated, at, measured, marks) {
            let _ = writeln!(made, "# {line}");
        }
        let block = format!("[[variants]]\n{}", text(&variant(entry))?);
        if marks.left_out[at].is_none() {
            any = true;
            made.push_str(&block);
        } else {
            for line in block.lines() {
                let _ = writeln!(made, "# {line}");
            }
        }
    }
    Ok(any.then_some(made))
}

/// A variant as a manifest has it.
fn variant(entry: &Entry) -> Table {
    let mut table = entry.original.clone().unwrap_or_else(|| {
        let mut table = Table::new();
        table.insert("precision".to_owned(), entry.settings.precision.as_str().into());
        let VariantSettings { engine, threads, max_batch, optimisation, processor, .. } = &entry.settings;
        if *engine != Engine::Onnx {
            table.insert("engine".to_owned(), engine.name().into());
        }
        table.insert("threads".to_owned(), i64::from(*threads).into());
        table.insert("max_batch".to_owned(), i64::from(*max_batch).into());
        if *optimisation != Optimisation::default() {
            table.insert("optimisation".to_owned(), optimisation.name().into());
        }
        if *processor != Processor::default() {
            table.insert("processor".to_owned(), processor.to_string().into());
        }
        let VariantSettings { gpu_memory, string_bytes, .. } = &entry.settings;
        for (name, bytes) in [("gpu_memory", gpu_memory), ("string_bytes", string_bytes)] {
            let bytes = bytes.and_then(|bytes| i64::try_from(bytes.0).ok());
            table.extend(bytes.map(|bytes| (name.to_owned(), bytes.into())));
        }
        table
    });
    table.insert("name".to_owned(), entry.name.as_str().into());
    let file = entry.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    table.insert("file".to_owned(), file.into());
    table
}

/// What is said of a variant above it.
fn said(generated: &Generated, at: usize, measured: &Measured, marks: &Marks) -> Vec<String> {
    let entry = &generated.entries[at];
    let mut lines = Vec::new();
    if let Some(check) = entry.made.as_ref().and_then(|piece| piece.check.as_ref()) {
        let items = check["items"].as_u64().unwrap_or(0);
        let how = match check["top1"].as_f64() {
            Some(top1) => format!("{:.1} % of its first labels are its parent's", 100.0 * top1),
            None => format!(
                "its answers and its parent's have a cosine of {:.4}",
                check["cosine_mean"].as_f64().unwrap_or(0.0)
            ),
        };
        lines.push(format!("{how}, on {items} items."));
    }
    if let Some(profile) = measured.profiles.get(&entry.name)
        && let (Some(one), Some(most)) = (profile.latency.first(), profile.latency.last())
    {
        lines.push(format!(
            "Measured on {}: accuracy {:.4} ({} items), {:.3} ms at {}, {:.3} ms at {}, {} in memory.",
            profile.device_class,
            profile.accuracy.value.as_f64(),
            profile.accuracy.samples,
            one.mean_us / 1_000.0,
            one.batch,
            most.mean_us / 1_000.0,
            most.batch,
            profile.memory
        ));
    }
    if let Some(by) = marks.dominated[at] {
        lines.push(format!("Dominated: {} is as good in everything.", generated.entries[by].name));
    }
    let failed = || measured.failed.get(&entry.name).map(|why| format!(": {}", why.replace('\n', " ")));
    lines.extend(marks.left_out[at].map(|why| format!("Left out: {why}{}.", failed().unwrap_or_default())));
    lines
}

fn report(request: &Request, generated: &Generated, measured: &Measured, marks: &Marks) -> String {
    let told = generated.entries.iter().enumerate().map(|(at, entry)| Told {
        variant: &entry.name,
        model: &entry.model,
        sha256: &entry.sha256,
        bytes: entry.bytes,
        made: entry.made.as_ref(),
        profile: measured.profiles.get(&entry.name),
        dominated_by: marks.dominated[at].map(|by| generated.entries[by].name.as_str()),
        left_out: marks.left_out[at],
        failed: measured.failed.get(&entry.name).map(String::as_str),
    });
    let not: Vec<&Piece> = generated.pieces.iter().filter(|piece| piece.outcome != Outcome::Made).collect();
    let sets = &request.sets;
    let whole = json!({
        "task": request.task.name,
        "model": request.model.name,
        "version": request.version,
        "parent": request.model.variants[request.parent].name,
        "calibration_set": {"name": sets.calibration.name(), "items": sets.calibration.len()},
        "accuracy_set": {"name": sets.accuracy.name(), "items": sets.accuracy.len()},
        "variants": told.collect::<Vec<_>>(),
        "not_made": not,
    });
    serde_json::to_string_pretty(&whole).expect("it is plain data; this is a bug") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::Bytes;

    #[test]
    fn half_precision_gains_by_more_than_two_measurements_differ() {
        let point = |latency: u64, work: u64| Point {
            accuracy: modelless_types::Accuracy::ONE,
            latency,
            cost: modelless_types::CostPer1k(0),
            work,
            memory: Bytes(0),
        };
        let parent = point(31_900, 4_830);
        for (latency, work, gain) in [
            (32_100, 4_760, false), // of one file twice
            (31_800, 4_700, false),
            (30_300, 4_900, true),
            (32_000, 4_588, true),
            (20_000, 5_000, false), // what it gains alone it loses in a batch
            (20_000, 2_400, true),
        ] {
            assert_eq!(gains(point(latency, work), parent), gain, "{latency} {work}");
        }
    }

    #[test]
    fn what_is_made_runs_as_its_parent_does() {
        let parent = VariantSettings {
            threads: 2,
            optimisation: Optimisation::Basic,
            processor: Processor::Tensorrt(1),
            gpu_memory: Some(Bytes::from_mib(512)),
            string_bytes: Some(Bytes(4_000)),
            ..VariantSettings::new(Engine::Onnx, "fp32", 8)
        };
        for (engine, processor) in
            [(Engine::Onnx, Processor::Tensorrt(1)), (Engine::Torch, Processor::Cuda(1))]
        {
            let settings = settings(&parent, engine, "int8");
            let entry = Entry {
                name: "model-int8".to_owned(),
                model: "model".to_owned(),
                adapter: serde_json::from_str(r#"{"kind": "tensor"}"#).unwrap(),
                settings: settings.clone(),
                file: PathBuf::from("models/model-int8.onnx"),
                sha256: String::new(),
                bytes: 1,
                made: None,
                original: None,
            };
            let written = toml::to_string(&variant(&entry)).unwrap();
            let read: crate::manifest::VariantManifest = toml::from_str(&written).unwrap();
            assert_eq!(read.settings(), settings, "{written}");
            assert_eq!(
                read.settings(),
                VariantSettings { engine, processor, precision: "int8".to_owned(), ..parent.clone() }
            );
        }
    }
}
