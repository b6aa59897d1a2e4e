//! `modelless variant generate`: other forms of a model, made and measured on this machine without a server.

use crate::client::{self, Server};
use crate::dump;
use crate::engines::{self, LibraryOption};
use crate::exit::usage;
use crate::out;
use crate::profile;
use crate::progress::{Phase, count};
use crate::table::Table;
use crate::up::{bytes, half_of_memory};
use crate::way::Budget;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use modelless_engine::{Engine, default_engines_dir};
use modelless_executor::node;
use modelless_profiler::generate::{
    self, ASKED_FOR, Calibration, Generated, Limits, Marks, Measured, Outcome, RECIPES, Request, Step, Tools,
};
use modelless_profiler::{
    Config, LabelledSet, ModelManifest, Package, Profiler, Report, SetManifest, TaskManifest,
};
use modelless_store::{MemStore, Store as _};
use modelless_types::{Bytes, TenantId};
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make other forms of a model: eight bits, layers cut in two, smaller inputs.
    Generate(Box<Options>),
    /// Write down what a model is given: a labelled set through its adapter, for numpy.
    Dump(dump::Options),
    /// Install what making them needs, and say where it is.
    Tools(ToolsOptions),
}

#[derive(Args, Debug)]
pub(crate) struct ToolsOptions {
    /// For programs.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Options {
    /// A folder with task.toml and models/*.toml, or the model.toml of one of its models.
    #[arg(value_name = "PATH")]
    package: PathBuf,
    /// Which model, where there are several.
    #[arg(long)]
    model: Option<String>,
    /// Which of its variants others are made of. Otherwise the first in fp32 for ONNX Runtime.
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// The folder of the package that is made. Otherwise the model's name and `-variants`, here.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A labelled set instead of the one in task.toml: NAME-images-idx3-ubyte[.gz], a .csv of FILE,LABEL, or a .jsonl[.gz].
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
    /// What that set is called where its figures are shown. Otherwise its file's name.
    #[arg(long, requires = "set")]
    set_name: Option<String>,
    /// How many items of the set find ranges of activations, and measure nothing. At most a quarter of it.
    #[arg(long, value_name = "N", default_value_t = 256, conflicts_with = "calibration_set")]
    calibration: usize,
    /// A set of its own for that, in the same form. It must share no item with the other.
    #[arg(long, value_name = "FILE")]
    calibration_set: Option<PathBuf>,
    /// Only this; may be given several times: optimised, int8 (or int8-dynamic, int8-static, int8-minmax, int8-percentile,
    /// int8-entropy), svd (or svd-mild, svd-strong, svd-int8), fp16, size; torchscript (of ONNX) is made only so, and
    /// needs `modelless engine install torch`.
    #[arg(long, value_name = "WHAT")]
    only: Vec<String>,
    /// Widths of smaller inputs, for pictures. Otherwise about five and six sevenths of the model's.
    #[arg(long, value_name = "PIXELS", value_delimiter = ',')]
    size: Vec<u32>,
    /// The version that the package gives the model; its variants are then named after it, beside those of others. Otherwise the model's
    /// own, or with --register the next one where the server has that.
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    /// Leave measuring out: only make them.
    #[arg(long)]
    no_measure: bool,
    /// So long at most for measuring all of them, such as 60s, and the best that is known then; at a server, with --register, that
    /// long again. Otherwise as long as it takes, and at a server a minute.
    #[arg(long, value_name = "TIME", value_parser = Budget::parse)]
    budget: Option<Budget>,
    /// Measure what was measured before, too. Otherwise figures of the last 24 hours stand, if program and engine are the same.
    #[arg(long, conflicts_with = "no_measure")]
    again: bool,
    /// The most memory that making them may take. Otherwise half of the machine's.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<Bytes>,
    /// The most seconds of a processor that making them may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    time: u64,
    /// Make them even where this kernel cannot keep the program that does from the rest of the machine.
    #[arg(long)]
    unboxed: bool,
    /// Send the package to a server then, as `modelless model register` does.
    #[arg(long, conflicts_with = "no_measure")]
    register: bool,
    /// Make the version that is sent the default one, as `modelless model register --promote` does.
    #[arg(long, requires = "register")]
    promote: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    library: LibraryOption,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    match command {
        Command::Generate(options) => {
            // What asks a server has a runtime of its own, so it stands before and after.
            let version = version(&options)?;
            let out = runtime.block_on(generate(&options, version))?;
            if options.register {
                let how = (options.promote, options.budget.unwrap_or_default());
                client::model::register_folder(&out, how, &options.server)?;
            }
            Ok(())
        }
        Command::Dump(options) => dump::run(&options),
        Command::Tools(ToolsOptions { json }) => {
            let tools = runtime.block_on(tools())?;
            if json {
                let Tools { python, libraries, program, .. } = &tools;
                out::json(&json!({"python": python, "libraries": libraries, "program": program}))
            } else {
                out::line(tools.libraries.display())
            }
        }
    }
}

/// What making variants needs: beside the inference libraries, so that several data folders share it.
async fn tools() -> anyhow::Result<Tools> {
    let mut phase: Option<Phase> = None;
    let tools = Tools::ensure(&default_engines_dir().join("generator"), &mut |done, of| {
        let phase = phase.get_or_insert_with(|| Phase::start("tools for ONNX models"));
        phase.at("fetching tools for ONNX models", "");
        phase.bytes(done, of);
    })
    .await?;
    if let Some(phase) = phase {
        phase.done("tools for ONNX models fetched");
    }
    Ok(tools)
}

/// Where the package lies that was made.
async fn generate(options: &Options, version: Option<u32>) -> anyhow::Result<PathBuf> {
    let request = request(options, version).await?;
    let tools = tools().await?;
    let engine = if !options.no_measure || request.needs_torch() { Some(engine(options)?) } else { None };
    let made = make(options, &request, &tools, engine.clone()).await;
    if let Some(engine) = engine {
        engine.shutdown().await;
    }
    let (generated, measured) = made?;
    generate::write(&request, &generated, &measured)?;
    if options.server.json {
        let report = request.out.join("generated.json");
        let text = std::fs::read(&report).with_context(|| format!("cannot read {}", report.display()))?;
        out::json(&serde_json::from_slice::<serde_json::Value>(&text)?)?;
    } else {
        out::line(table(&request, &generated, &measured))?;
        for line in told(&generated, &measured) {
            out::line(line)?;
        }
        let folder = request.out.display();
        out::line(format!("\nwritten to {folder}; to serve them: modelless model register {folder}"))?;
    }
    Ok(request.out)
}

fn engine(options: &Options) -> anyhow::Result<Arc<dyn Engine>> {
    let library = engines::library(&options.library)?;
    Ok(engines::engine(library, (half_of_memory(), 0), &node::hardware().gpus, &engines::Servers::new())?)
}

async fn make(
    options: &Options,
    request: &Request,
    tools: &Tools,
    engine: Option<Arc<dyn Engine>>,
) -> anyhow::Result<(Generated, Measured)> {
    let class = node::device_class(&node::hardware());
    let command = format!("modelless variant generate {}", options.package.display());
    let within = options.budget.and_then(|budget| budget.0);
    let profiler =
        engine.map(|engine| Profiler::new(engine, Config::default(), class, command).within(within));
    let mut phase = Phase::start("making variants");
    let told = &mut |Step { what, done, of }: Step<'_>| {
        phase.share(done, of);
        phase.at(what, &format!("{done} of {of}"));
    };
    let generated = request.run(tools, profiler.as_ref(), told).await?;
    let made = generated.pieces.iter().filter(|piece| piece.outcome == Outcome::Made);
    let there = made.clone().filter(|piece| piece.reused).count();
    phase.done(&format!("{} made ({there} of them before)", count(made.count(), "variant")));
    let measured = match profiler.filter(|_| !options.no_measure) {
        Some(profiler) => measure(request, &generated, (&profiler, options.again)).await?,
        None => Measured::default(),
    };
    Ok((generated, measured))
}

async fn measure(
    request: &Request,
    generated: &Generated,
    (profiler, again): (&Profiler, bool),
) -> anyhow::Result<Measured> {
    let mut phase = Phase::start("measuring");
    let (mut at, mut done) = (0, 0);
    let number = generated.entries.len();
    let report: Report<'_> = &mut |name: &str, progress| {
        let named = generated.entries.iter().position(|entry| entry.name == name).unwrap_or(at);
        if named != at {
            (at, done) = (named, 0);
        }
        done = profile::permille(progress, done);
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        phase.share(count(at) * 1_000 + done, count(number) * 1_000);
        phase.at(name, &format!("({} of {number}) {}", at + 1, profile::detail(progress)));
    };
    let measured = generate::measure(request, generated, (profiler, again), report).await?;
    phase.done(&format!(
        "{} measured on {}",
        count(measured.profiles.len(), "variant"),
        profiler.device_class()
    ));
    Ok(measured)
}

async fn request(options: &Options, version: Option<u32>) -> anyhow::Result<Request> {
    let recipes = recipes(&options.only)?;
    let (manifest, model) = chosen(options)?;
    // Only so that the task is checked and numbered as it would be.
    let task = MemStore::default().create_task(manifest.new_task(TenantId::DEFAULT)?).await?;
    let named = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let set = match (&options.set, &manifest.labelled_set) {
        (Some(path), _) => {
            let name = options.set_name.clone().unwrap_or_else(|| named(path));
            LabelledSet::open(path, &name, &task)?
        }
        (None, Some(SetManifest { name, path })) => LabelledSet::open(path, name, &task)?,
        (None, None) => {
            return Err(usage(
                "making variants takes a labelled set, to find ranges with and to measure what comes of it: give --set FILE, \
                 or one in task.toml",
            ));
        }
    };
    let calibration = match &options.calibration_set {
        Some(path) => Calibration::Set(LabelledSet::open(path, &named(path), &task)?),
        None => Calibration::Part(options.calibration),
    };
    let parent = generate::parent_of(&model, options.variant.as_deref())?;
    let own = || PathBuf::from(format!("{}-variants", model.name));
    Ok(Request {
        parent,
        manifest,
        task,
        sets: generate::split(&set, calibration)?,
        out: options.out.clone().unwrap_or_else(own),
        recipes,
        widths: options.size.clone(),
        version: version.unwrap_or(model.version),
        limits: Limits {
            // Not by its path: that may have been replaced by a newer version meanwhile.
            enter: vec![OsString::from("/proc/self/exe"), OsString::from("boxed")],
            memory: options.memory.unwrap_or_else(half_of_memory),
            cpu_seconds: options.time.max(1),
            unboxed: options.unboxed,
        },
        model,
    })
}

/// The version that is wanted; with --register one that the server has room for, asked before anything is made.
fn version(options: &Options) -> anyhow::Result<Option<u32>> {
    if options.version.is_some() || !options.register {
        return Ok(options.version);
    }
    let (task, model) = chosen(options)?;
    client::model::free_version(&options.server, &task.name, &model.name, model.version).map(Some)
}

fn recipes(only: &[String]) -> anyhow::Result<Vec<String>> {
    let mut wanted = Vec::new();
    for word in only {
        let found = generate::recipes(word);
        if found.is_empty() {
            return Err(usage(format!(
                "--only {word} is nothing that can be made; there are {}",
                RECIPES.join(", ")
            )));
        }
        wanted.extend(found);
    }
    if only.is_empty() {
        wanted.extend(RECIPES.iter().filter(|recipe| !ASKED_FOR.contains(recipe)));
    }
    Ok(RECIPES.iter().filter(|recipe| wanted.contains(recipe)).map(|recipe| (*recipe).to_owned()).collect())
}

/// The model, and the task of the package that it stands in.
fn chosen(options: &Options) -> anyhow::Result<(TaskManifest, ModelManifest)> {
    let path = &options.package;
    if path.is_dir() && path.join("task.toml").is_file() {
        let Package { task, models } = Package::read(path)?;
        let names: Vec<_> = models.iter().map(|model| model.name.clone()).collect();
        let wanted = |model: &ModelManifest| options.model.as_ref().is_none_or(|name| model.name == *name);
        let mut found: Vec<_> = models.into_iter().filter(wanted).collect();
        return match (found.pop(), found.is_empty()) {
            (Some(model), true) => Ok((task, model)),
            _ => Err(usage(format!("say which model with --model: this package has {}", names.join(", ")))),
        };
    }
    let file = if path.is_dir() { path.join("model.toml") } else { path.clone() };
    if !file.is_file() {
        return Err(usage(format!(
            "there is no {}; give a model.toml or the folder of a package",
            file.display()
        )));
    }
    let model = ModelManifest::read(&file)?;
    let mut folders = file.ancestors().skip(1).take(2).map(|folder| folder.join("task.toml"));
    match folders.find(|task| task.is_file()) {
        Some(task) => Ok((TaskManifest::read(&task)?, model)),
        None => Err(usage(format!(
            "no task.toml stands beside {} or in the folder above; it says what the model is for, and with which labelled set \
             it is measured",
            file.display()
        ))),
    }
}

fn table(request: &Request, generated: &Generated, measured: &Measured) -> Table {
    let mut table = Table::new(&[
        "variant",
        ">bytes",
        ">as its parent",
        ">accuracy",
        ">ms at 1",
        ">ms at largest",
        ">memory",
        "",
    ]);
    let marks = Marks::of(request, generated, measured);
    for (at, entry) in generated.entries.iter().enumerate() {
        let check = entry.made.as_ref().and_then(|piece| piece.check.as_ref());
        let alike = check.and_then(|check| check["top1"].as_f64().or(check["cosine_mean"].as_f64()));
        let mut row = vec![
            entry.name.clone(),
            Bytes(entry.bytes).to_string(),
            alike.map_or_else(|| "-".to_owned(), |alike| format!("{alike:.4}")),
        ];
        if let Some(profile) = measured.profiles.get(&entry.name) {
            let ms = |us: f64| format!("{:.3}", us / 1_000.0);
            row.push(format!("{:.4}", profile.accuracy.value.as_f64()));
            row.push(profile.latency.first().map(|point| ms(point.mean_us)).unwrap_or_default());
            let last = profile.latency.last();
            row.push(
                last.map(|point| format!("{} ({})", ms(point.mean_us), point.batch)).unwrap_or_default(),
            );
            row.push(profile.memory.to_string());
        } else {
            row.extend(["-"; 4].map(str::to_owned));
        }
        row.push(match (marks.dominated[at], marks.left_out[at]) {
            (_, Some(_)) => "left out".to_owned(),
            (Some(by), None) => format!("dominated by {}", generated.entries[by].name),
            (None, None) if at == request.parent => "the parent".to_owned(),
            (None, None) => String::new(),
        });
        table.row(row);
    }
    table
}

/// What was not made or not measured, and why.
fn told(generated: &Generated, measured: &Measured) -> Vec<String> {
    // What keeps a smaller input from being made keeps all that would be made of it.
    let mut not: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for piece in generated.pieces.iter().filter(|piece| piece.outcome != Outcome::Made) {
        not.entry(piece.why.as_deref().unwrap_or_default()).or_default().push(&piece.name);
    }
    let not = not.into_iter().map(|(why, names)| format!("not made: {}: {why}", names.join(", ")));
    let failed = measured.failed.iter().map(|(name, why)| format!("not measured: {name}: {why}"));
    not.chain(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_recipes_in_their_own_order_and_unknown_ones_are_told() {
        let words = |words: &[&str]| recipes(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&[]).unwrap(), RECIPES[..RECIPES.len() - 1]);
        assert_eq!(words(&["torchscript"]).unwrap(), ["torchscript"]);
        assert_eq!(words(&["fp16", "svd"]).unwrap(), ["svd-mild", "svd-strong", "svd-int8", "fp16"]);
        let error = words(&["int4"]).unwrap_err();
        assert!(error.to_string().contains("int4") && error.to_string().contains("int8-entropy"), "{error}");
    }
}
