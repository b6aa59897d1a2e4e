//! `modelless profile run`: the models of a package, measured on this machine without a server.

use super::{detail, permille};
use crate::client::profile::file;
use crate::engines::{self, LibraryOption};
use crate::exit::usage;
use crate::out;
use crate::plot::{self, Point};
use crate::progress::{Phase, count};
use crate::table::Table;
use crate::up::half_of_memory;
use anyhow::Context;
use clap::Args;
use modelless_decision::steady;
use modelless_engine::Engine;
use modelless_executor::node;
use modelless_gateway::{ProfileEntry, ProfileFile, Through};
use modelless_profiler::{
    Config, LabelledSet, ModelManifest, Package, Profiler, Report, Subject, VariantManifest,
};
use modelless_store::{MemStore, Store};
use modelless_types::{AccuracyMeasure, Profile, Task, TenantId, VariantSettings};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A folder with task.toml and models/*.toml.
    package: PathBuf,
    /// A labelled set instead of the one in task.toml: NAME-images-idx3-ubyte[.gz], or a .csv of FILE,LABEL.
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
    /// What that set is called where its figures are shown. Otherwise its file's name.
    #[arg(long, requires = "set")]
    set_name: Option<String>,
    /// Leave latency out: only compare answers with labels.
    #[arg(long)]
    accuracy_only: bool,
    /// Only this variant; may be given several times.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// So long at most for all of it, such as 60s, and the best that is known then. What is not known well by then is
    /// marked as coarse.
    #[arg(long, value_name = "TIME", value_parser = super::duration)]
    budget: Option<Duration>,
    /// With these numbers of threads instead of the variants' own, such as 1,2.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,
    /// Write the profiles to this file, for `profile import`: JSON, or CSV by its name.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["accuracy_only", "threads"])]
    out: Option<PathBuf>,
    /// Draw accuracy against latency into this file: SVG, or PNG where its name ends in .png.
    #[arg(long, value_name = "FILE", value_parser = plot::path, conflicts_with = "accuracy_only")]
    plot: Option<PathBuf>,
    /// Write the accuracies to this file, for `also` in a task.toml.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    library: LibraryOption,
}

impl Options {
    /// The command that makes the same figures again.
    fn command(&self) -> String {
        let mut words = vec!["modelless profile run".to_owned(), self.package.display().to_string()];
        if let Some(set) = &self.set {
            words.push(format!("--set {}", set.display()));
        }
        if self.accuracy_only {
            words.push("--accuracy-only".to_owned());
        }
        if let Some(budget) = self.budget {
            words.push(format!("--budget {}ms", budget.as_millis()));
        }
        words.join(" ")
    }
}

/// What was measured of one variant.
#[derive(Serialize)]
struct Measured {
    variant: String,
    threads: u16,
    accuracy: AccuracyMeasure,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
    /// For a file of profiles.
    #[serde(skip)]
    entry: Option<ProfileEntry>,
}

impl Measured {
    fn point(&self) -> Option<Point> {
        let name = self.name();
        self.profile.as_ref().and_then(|profile| Point::of(name, profile))
    }

    fn name(&self) -> String {
        let Self { variant, threads, .. } = self;
        if *threads == 1 { variant.clone() } else { format!("{variant} ({threads} threads)") }
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let library = engines::library(&options.library)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let All { measured, failed } = runtime.block_on(async {
        let engine = engines::engine(
            library,
            (half_of_memory(), 0),
            &node::hardware().gpus,
            &engines::Servers::new(),
        )?;
        let measured = measure(options, engine.clone()).await;
        engine.shutdown().await;
        measured
    })?;
    if let Some(path) = &options.write {
        let accuracies: BTreeMap<&str, &AccuracyMeasure> =
            measured.iter().map(|one| (one.variant.as_str(), &one.accuracy)).collect();
        let text = serde_json::to_string_pretty(&accuracies)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &options.plot {
        let points: Vec<Point> = measured.iter().filter_map(Measured::point).collect();
        let title = format!("{}: accuracy and latency of its variants", options.package.display());
        let class = measured.iter().find_map(|one| one.profile.as_ref());
        let note = class.map(|profile| format!("on {}", profile.device_class)).unwrap_or_default();
        plot::write(path, &title, &note, &points)?;
    }
    if options.json {
        out::json(&measured)?;
    } else if !measured.is_empty() {
        out::line(table(&measured))?;
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(anyhow::anyhow!(
            "{} of {} not measured: {}",
            failed.len(),
            count(failed.len() + measured.len(), "variant"),
            failed.join("; ")
        )),
    }
}

/// What came of all of them.
#[derive(Default)]
struct All {
    measured: Vec<Measured>,
    /// Those that could not be measured, each with its reason.
    failed: Vec<String>,
}

/// Measures one after another. One that fails takes nothing from the others: each is written down as soon as it is known.
async fn measure(options: &Options, engine: Arc<dyn Engine>) -> anyhow::Result<All> {
    let package = Package::read(&options.package)?;
    // Only so that the task is checked and numbered as it would be.
    let task = MemStore::default().create_task(package.task.new_task(TenantId::DEFAULT)?).await?;
    let set = set(options, &package, &task)?;
    if set.is_none() && options.accuracy_only {
        return Err(usage("--accuracy-only needs a labelled set: give --set FILE, or one in task.toml"));
    }
    let all =
        package.models.iter().flat_map(|model| model.variants.iter().map(move |variant| (model, variant)));
    let wanted = |name: &str| options.variants.is_empty() || options.variants.iter().any(|v| v == name);
    let threads = |own: u16| if options.threads.is_empty() { vec![own] } else { options.threads.clone() };
    let chosen: Vec<_> = all
        .filter(|(_, variant)| wanted(&variant.name))
        .flat_map(|(model, variant)| threads(variant.threads).into_iter().map(move |n| (model, variant, n)))
        .collect();
    if chosen.is_empty() {
        return Err(usage(format!("no variant of this package is called {}", options.variants.join(" or "))));
    }
    let profiler =
        Profiler::new(engine, Config::default(), node::device_class(&node::hardware()), options.command())
            .within(options.budget);
    let (since, number) = (Instant::now(), chosen.len());
    let mut phase = Phase::start("measuring");
    let mut all = All::default();
    for (at, (model, variant, threads)) in chosen.into_iter().enumerate() {
        let mut done = 0;
        let report: Report<'_> = &mut |name: &str, progress| {
            done = permille(progress, done);
            let all = u64::try_from(number).unwrap_or(1) * 1_000;
            phase.share(u64::try_from(at).unwrap_or(0) * 1_000 + done, all);
            phase.at(name, &detail(progress));
        };
        let profiler = profiler.share(since, number - at);
        let what = What { options, task: &task, set: set.as_ref(), model, variant, threads };
        match what.measure(&profiler, report).await {
            Ok(one) => all.measured.push(one),
            Err(error) => {
                let why = all.failed_with(&variant.name, &error);
                phase.at(&variant.name, &why);
                continue;
            }
        }
        if let Some(path) = &options.out {
            let entries = all.measured.iter().filter_map(|one| one.entry.clone()).collect();
            file::write(path, &ProfileFile::new(entries))?;
        }
    }
    let what = count(all.measured.len(), "variant");
    phase.done(&format!("{what} measured on {}", profiler.device_class()));
    Ok(all)
}

impl All {
    fn failed_with(&mut self, variant: &str, error: &anyhow::Error) -> String {
        let why = format!("{error:#}");
        self.failed.push(if why.contains(variant) { why.clone() } else { format!("{variant}: {why}") });
        why
    }
}

/// A variant to be measured, and with what.
struct What<'a> {
    options: &'a Options,
    task: &'a Task,
    set: Option<&'a LabelledSet>,
    model: &'a ModelManifest,
    variant: &'a VariantManifest,
    threads: u16,
}

impl What<'_> {
    async fn measure(&self, profiler: &Profiler, report: Report<'_>) -> anyhow::Result<Measured> {
        let Self { options, task, set, model, variant, threads } = *self;
        let artefact = File::open(&variant.file);
        let artefact = artefact.with_context(|| format!("cannot read {}", variant.file.display()))?;
        let settings = VariantSettings { threads, ..variant.settings() };
        let subject = Subject {
            name: &variant.name,
            task,
            adapter: &model.adapter,
            settings: &settings,
            artefact,
            tokenizer: model.tokenizer()?,
            declared: model.declared(),
        };
        let (accuracy, profile) = match set {
            Some(set) if options.accuracy_only => (profiler.accuracy(subject, set, report).await?, None),
            set => {
                let profile = profiler.profile(subject, set, report).await?;
                (profile.accuracy.clone(), Some(profile))
            }
        };
        let entry = match (&profile, &options.out) {
            (Some(profile), Some(_)) => Some(ProfileEntry {
                task: task.name.clone(),
                model: model.name.clone(),
                model_version: model.version,
                variant: variant.name.clone(),
                artefact_sha256: sha256(&variant.file)?,
                settings: Some(settings),
                through: through(model, task)?,
                profile: profile.clone(),
            }),
            _ => None,
        };
        Ok(Measured { variant: variant.name.clone(), threads, accuracy, profile, entry })
    }
}

/// As the store would have it, where the tokenizer is named by its digest.
fn through(model: &ModelManifest, task: &Task) -> anyhow::Result<Through> {
    let mut adapter = model.adapter.clone();
    if let Some(file) = model.adapter.tokenizer() {
        adapter.set_tokenizer(sha256(Path::new(file))?);
    }
    Ok(Through::of(&adapter.to_json()?, &task.labels))
}

fn set(options: &Options, package: &Package, task: &Task) -> anyhow::Result<Option<LabelledSet>> {
    let Some(path) = &options.set else { return Ok(package.open_set(task)?) };
    let name = match &options.set_name {
        Some(name) => name.clone(),
        None => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    Ok(Some(LabelledSet::open(path, &name, task)?))
}

fn sha256(file: &Path) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", file.display());
    let (mut hash, mut part) = (Sha256::new(), vec![0; 1 << 16]);
    let mut opened = File::open(file).with_context(cannot)?;
    loop {
        let read = opened.read(&mut part).with_context(cannot)?;
        if read == 0 {
            break;
        }
        hash.update(&part[..read]);
    }
    Ok(hash.finalize().iter().fold(String::new(), |mut text, byte| {
        // A string takes all that is written to it.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn table(measured: &[Measured]) -> String {
    let mut head = vec!["variant", ">accuracy", "95 % interval", ">items"];
    if measured.iter().any(|one| one.profile.is_some()) {
        head.extend([">ms at 1", ">p99", ">ms at largest", ">memory", ">load ms", ">cold", ""]);
    }
    let mut table = Table::new(&head);
    for one in measured {
        let AccuracyMeasure { value, low, high, samples, .. } = &one.accuracy;
        let mut row = vec![
            one.name(),
            format!("{:.4}", value.as_f64()),
            format!("{:.4} to {:.4}", low.as_f64(), high.as_f64()),
            samples.to_string(),
        ];
        if let Some(profile) = &one.profile {
            let ms = |us: f64| format!("{:.3}", us / 1_000.0);
            row.push(profile.latency.first().map(|point| ms(point.mean_us)).unwrap_or_default());
            row.push(profile.latency.first().map(|point| ms(point.p99_us)).unwrap_or_default());
            let last = profile.latency.last();
            row.push(
                last.map(|point| format!("{} ({})", ms(point.mean_us), point.batch)).unwrap_or_default(),
            );
            row.push(profile.memory.to_string());
            row.push(format!("{:.0}", profile.load_time.as_millis_f64()));
            let cold = profile.detail.load_cold;
            row.push(cold.map_or_else(|| "-".to_owned(), |time| format!("{:.0}", time.as_millis_f64())));
            let marks = [(profile.detail.coarse, "coarse"), (profile.detail.unsteady.is_some(), "unsteady")];
            let marks: Vec<&str> = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
            row.push(marks.join(", "));
        }
        table.row(row);
    }
    let coarse = measured.iter().any(|one| one.profile.as_ref().is_some_and(|profile| profile.detail.coarse));
    let note = if coarse {
        "\n\ncoarse: the time was over before everything was known well; without --budget it takes as long as it takes"
    } else {
        ""
    };
    let unsteady = measured.iter().filter_map(|one| {
        let why = steady::reason(one.profile.as_ref()?.detail.unsteady.as_ref()?);
        Some(format!("\n{}: {why}", one.variant))
    });
    unsteady.fold(format!("{table}{note}"), |text, line| text + &line)
}
