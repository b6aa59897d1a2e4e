//! `modelless model`: what answers.

mod file;

use super::feedback::warnings;
use super::under_way::{Left, going};
use super::versions::{self, history, path, stands, who};
use super::{Api, Server, list, measuring, segment, sharing, task, text, trials};
use crate::exit::usage;
use crate::out;
use crate::progress::{Phase, count};
use crate::table::Table;
use crate::way::{self, Budget};
use anyhow::Context;
use bytes::Bytes;
use clap::{Args, Subcommand};
use file::FileOptions;
use http::{Method, StatusCode};
use modelless_profiler::{LabelledSet, ModelManifest, Package, TaskManifest};
use modelless_store::{TaskChange, sha256_of};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Upload a model, have it measured there, and serve it.
    Register(Box<Register>),
    /// All models.
    List(List),
    /// One model with its adapter and variants.
    Show(Show),
    /// Make a version the default: it answers queries that pin nothing.
    Promote(versions::Promote),
    /// Go back to the version that was the default before.
    Rollback(versions::Rollback),
    /// Have a version answer a share of its task's queries, and take it back by itself if it does worse; or stop that.
    Try(trials::Try),
    /// Trials of versions, newest first.
    Trials(trials::List),
    /// How the version on trial does, or how the last trial ended.
    Trial(trials::Show),
    /// Say which other tenants may use a model, later versions of it included.
    Share(sharing::Share),
    /// Take a model out of service.
    Remove(Remove),
}

#[derive(Args, Debug)]
pub(crate) struct Register {
    /// A model.toml or its folder; an ONNX or TorchScript (.pt) file, described by options; or a folder with task.toml and models/*.toml.
    path: PathBuf,
    /// The task it is for. A manifest may name its own; that of a folder with task.toml is made if need be.
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    file: FileOptions,
    /// What to measure its accuracy with: NAME-images-idx3-ubyte[.gz], a .csv of FILE,LABEL, or a .jsonl[.gz] of
    /// label and input. A folder names its own.
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
    /// What that set is called where its figures are shown. Otherwise its file's name.
    #[arg(long, requires = "set")]
    set_name: Option<String>,
    /// Make it the default version, so that it answers queries that pin nothing: in a cluster once its nodes have measured it. The first
    /// version of a name is in any case; later ones are candidates until they are promoted.
    #[arg(long)]
    promote: bool,
    /// Whom to ask about it, in place of what the manifest says.
    #[arg(long)]
    owner: Option<String>,
    /// So long at most for measuring, all models together, such as 60s, and the best that is known then; it is measured again
    /// while nothing is asked. Or none, for as long as it takes.
    #[arg(long, value_name = "TIME", default_value = way::USUAL, value_parser = Budget::parse)]
    budget: Budget,
    /// Do not wait until the nodes of a cluster have measured it. `modelless model show` tells how far they are.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only of this task.
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The model.
    name: String,
    /// Its task. Needed where several tasks have a model of this name.
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Remove {
    /// The model.
    name: String,
    /// Its task. Needed where several tasks have a model of this name.
    #[arg(long)]
    task: Option<String>,
    /// Which of its versions.
    #[arg(long)]
    version: Option<u32>,
    /// Even while it serves, or while it is the default of several versions.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Register(options) => register(&options),
        Command::List(options) => {
            let query = options.task.map(|task| {
                format!(
                    "?{}",
                    form_urlencoded::Serializer::new(String::new()).append_pair("task", &task).finish()
                )
            });
            let path = format!("/v1/models{}", query.unwrap_or_default());
            let answer = options.server.api()?.get(&path)?.ok()?.json()?;
            if options.server.json { out::json(&answer) } else { out::line(models(&answer)) }
        }
        Command::Show(options) => {
            let api = options.server.api()?;
            let answer = api.get(&path(&api, options.task.as_deref(), &options.name)?)?.ok()?.json()?;
            if options.server.json { out::json(&answer) } else { out::line(versions(&answer)) }
        }
        Command::Promote(options) => versions::promote(&options),
        Command::Rollback(options) => versions::roll_back(&options),
        Command::Try(options) => trials::begin(&options),
        Command::Trials(options) => trials::all(&options),
        Command::Trial(options) => trials::show(&options),
        Command::Share(options) => sharing::share(&options),
        Command::Remove(options) => remove(&options),
    }
}

fn models(answer: &Value) -> Table {
    let mut table =
        Table::new(&["task", "model", ">version", "default", "architecture", "licence", "owner", "variants"]);
    for model in list(answer, "models") {
        let variants: Vec<&str> = list(model, "variants").iter().filter_map(Value::as_str).collect();
        table.row([
            text(model, "task").to_owned(),
            text(model, "name").to_owned(),
            model["version"].to_string(),
            stands(model).to_owned(),
            text(model, "architecture").to_owned(),
            text(model, "licence").to_owned(),
            text(model, "owner").to_owned(),
            variants.join(", "),
        ]);
    }
    table
}

fn versions(answer: &Value) -> String {
    let shown = |model: &Value| {
        let mut table =
            Table::new(&["variant", "engine", "precision", ">threads", ">largest batch", "artefact"]);
        for variant in list(model, "variants") {
            table.row([
                text(variant, "name").to_owned(),
                text(variant, "engine").to_owned(),
                text(variant, "precision").to_owned(),
                variant["threads"].to_string(),
                variant["max_batch"].to_string(),
                text(&variant["artefact"], "sha256").to_owned(),
            ]);
        }
        let at_it = list(model, "variants").iter().flat_map(|variant| {
            list(variant, "measuring").iter().map(move |one| {
                let (name, node, class) =
                    (text(variant, "name"), text(one, "node"), text(one, "device_class"));
                let how = if one["state"] == "failed" { text(one, "why") } else { text(one, "progress") };
                format!(
                    "\n{name} is being measured for {class} by node {node} ({}): {how}",
                    text(one, "state")
                )
            })
        });
        let at_it = at_it.collect::<String>();
        let off = list(model, "variants").iter().flat_map(|variant| warnings(variant, false));
        let off = off.flat_map(|said| ["\n".to_owned(), said]).collect::<String>();
        let kept = list(model, "variants").iter().filter_map(coverage).collect::<String>();
        format!(
            "{} version {} of task {} (default: {}; {}, {}; owner: {})\nadapter {}\n\n{table}{off}{at_it}{kept}",
            text(model, "name"),
            model["version"],
            text(model, "task"),
            stands(model),
            text(model, "architecture"),
            text(model, "licence"),
            Some(text(model, "owner")).filter(|owner| !owner.is_empty()).unwrap_or("not said"),
            model["adapter"]
        )
    };
    let mut parts: Vec<String> = list(answer, "versions").iter().map(shown).collect();
    let history = history(list(answer, "history"));
    parts.extend(history);
    parts.join("\n\n")
}

/// How well live batches keep to what was predicted.
fn coverage(variant: &Value) -> Option<String> {
    let coverage = &variant["coverage"];
    let share = coverage["share"].as_f64()?;
    Some(format!(
        "\n{}: {:.2} % of {} batches took longer than predicted of 99 in 100",
        text(variant, "name"),
        100.0 * share,
        coverage["batches"]
    ))
}

fn remove(options: &Remove) -> anyhow::Result<()> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    if let Some(version) = options.version {
        query.append_pair("version", &version.to_string());
    }
    if options.force {
        query.append_pair("force", "true");
    }
    query.append_pair("by", &who());
    let query = query.finish();
    let api = options.server.api()?;
    let path = path(&api, options.task.as_deref(), &options.name)?;
    let answer = api.delete(&format!("{path}?{query}"))?.ok()?.json()?;
    if options.server.json {
        return out::json(&answer);
    }
    let removed = list(&answer, "removed").iter();
    let lines = removed.map(|one| format!("{} version {} removed", text(one, "name"), one["version"]));
    out::line(lines.collect::<Vec<_>>().join("\n"))
}

/// What is to be registered, and for what.
struct Wanted {
    task: String,
    models: Vec<ModelManifest>,
    set: Option<(PathBuf, String)>,
    /// To be made if the server has no such task.
    manifest: Option<TaskManifest>,
}

fn wanted(options: &Register) -> anyhow::Result<Wanted> {
    let own_set = options.set.clone().map(|path| {
        let file = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = options.set_name.clone().unwrap_or_else(file);
        (path, name)
    });
    if !options.path.exists() {
        return Err(usage(format!(
            "there is no {}; give a model.toml, an ONNX or TorchScript file or a folder",
            options.path.display()
        )));
    }
    let single = options.path.join("model.toml");
    if options.path.join("task.toml").exists() || (options.path.is_dir() && !single.is_file()) {
        options.file.refuse()?;
        let Package { task, models } = Package::read(&options.path)?;
        let named = || task.labelled_set.as_ref().map(|set| (set.path.clone(), set.name.clone()));
        let (set, name) = (own_set.or_else(named), options.task.clone());
        let name = name.unwrap_or_else(|| task.name.clone());
        return Ok(Wanted { task: name, models, set, manifest: Some(task) });
    }
    let ends = |ends: &[&str]| {
        let own = options.path.extension().and_then(|own| own.to_str());
        own.is_some_and(|own| ends.iter().any(|end| own.eq_ignore_ascii_case(end)))
    };
    let model = if ends(&["onnx", "pt"]) {
        options.file.manifest(&options.path)?
    } else {
        options.file.refuse()?;
        ModelManifest::read(if options.path.is_dir() { &single } else { &options.path })?
    };
    let task = options.task.clone().or_else(|| model.task.clone());
    let task =
        task.ok_or_else(|| usage("say which task the model is for: --task NAME, or `task` in its manifest"))?;
    Ok(Wanted { task, models: vec![model], set: own_set, manifest: None })
}

/// The version that a model would be given at a server: this one, or the one after the highest where it is there already.
pub(crate) fn free_version(server: &Server, task: &str, name: &str, wanted: u32) -> anyhow::Result<u32> {
    let path = format!("/v1/models/{}/{}", segment(task), segment(name));
    let reply = server.api()?.get(&path)?;
    if reply.status == StatusCode::NOT_FOUND {
        return Ok(wanted);
    }
    let model = reply.ok()?.json()?;
    Ok(free(list(&model, "versions").iter().filter_map(|version| version["version"].as_u64()), wanted))
}

fn free(known: impl Iterator<Item = u64>, wanted: u32) -> u32 {
    let known: Vec<u64> = known.collect();
    if !known.contains(&u64::from(wanted)) {
        return wanted;
    }
    let highest = known.into_iter().max().unwrap_or_default();
    u32::try_from(highest).map_or(u32::MAX, |highest| highest.saturating_add(1))
}

/// A package that was just made.
pub(crate) fn register_folder(
    folder: &Path,
    (promote, budget): (bool, Budget),
    server: &Server,
) -> anyhow::Result<()> {
    register(&Register {
        path: folder.to_owned(),
        task: None,
        file: FileOptions::default(),
        set: None,
        set_name: None,
        promote,
        owner: None,
        budget,
        no_wait: false,
        server: server.clone(),
    })
}

fn register(options: &Register) -> anyhow::Result<()> {
    let wanted = wanted(options)?;
    let api = options.server.api()?;
    let task = task_of(&api, &wanted)?;
    // All of them, before anything is sent.
    wanted.models.iter().try_for_each(|model| model.inspect(&task))?;
    let mut phase = Phase::start("registering");
    let set = match &wanted.set {
        Some((path, name)) => {
            phase.at(name, "sending the labelled set");
            let packed = LabelledSet::open(path, name, &task)?.pack()?;
            Some(json!({"name": name, "artefact_sha256": sent(&api, packed.into())?}))
        }
        None => None,
    };
    let (mut registered, mut accepted) = (Vec::new(), Vec::new());
    let mut left = Left::of(options.budget, wanted.models.iter().map(|model| model.variants.len()).sum());
    for model in &wanted.models {
        phase.at(&model.name, "sending");
        let mut variants = Vec::new();
        for variant in &model.variants {
            variants.push(json!({
                "name": variant.name,
                "engine": variant.engine,
                "precision": variant.precision,
                "threads": variant.threads,
                "max_batch": variant.max_batch,
                "optimisation": variant.optimisation,
                "processor": variant.processor,
                "gpu_memory": variant.gpu_memory,
                "string_bytes": variant.string_bytes,
                "artefact_sha256": sent(&api, read(&variant.file)?)?,
            }));
        }
        let mut adapter = model.adapter.clone();
        if let Some(file) = adapter.tokenizer().map(PathBuf::from) {
            adapter.set_tokenizer(sent(&api, read(&file)?)?);
        }
        let adapter: Value = serde_json::from_str(&adapter.to_json()?)?;
        let body = json!({
            "task": wanted.task,
            "name": model.name,
            "version": model.version,
            "architecture": model.architecture,
            "licence": model.licence,
            "owner": options.owner.as_ref().unwrap_or(&model.owner),
            "promote": options.promote,
            "by": who(),
            "space": model.space,
            "adapter": adapter,
            "variants": variants,
            "set": set,
            "declared_accuracy": model.accuracy,
            "budget_ms": left.next(model.variants.len()),
        });
        phase.at(&model.name, "being measured");
        let tell = &mut |seen: &Value| going(&mut phase, seen, &wanted.task, (&model.name, model.version));
        let reply = api.post_json_watching("/v1/models", &body, ("/v1/registrations", tell))?.ok()?;
        accepted.push(reply.status == StatusCode::ACCEPTED);
        registered.push(reply.json()?);
    }
    if !options.no_wait {
        // All were sent first, so that several nodes can share them.
        for (model, _) in registered.iter_mut().zip(&accepted).filter(|(_, accepted)| **accepted) {
            measuring::wait(&api, &mut phase, &wanted.task, model)?;
        }
        // A cluster promotes nothing that no node was measured with.
        for model in registered.iter_mut().filter(|model| options.promote && model["default"] == false) {
            phase.at(text(model, "name"), "being promoted");
            versions::promote_measured(&api, &wanted.task, model)?;
        }
    }
    let done = if options.no_wait && accepted.contains(&true) { "sent to be measured" } else { "registered" };
    phase.done(&format!("{} {done} for task {}", count(registered.len(), "model"), wanted.task));
    if options.server.json {
        return out::json(&registered);
    }
    let lines = registered.iter().map(|model| {
        let variants: Vec<&str> =
            list(model, "variants").iter().map(|variant| text(variant, "name")).collect();
        let default = if model["default"] == false {
            let (name, version) = (text(model, "name"), &model["version"]);
            format!(
                " (a candidate: try it with model={name}@{version}, then `modelless model promote {name} --version {version}`)"
            )
        } else {
            String::new()
        };
        format!("{} version {}: {}{default}", text(model, "name"), model["version"], variants.join(", "))
    });
    let doubts = registered.iter().flat_map(|model| list(model, "variants")).flat_map(|variant| {
        let of = move |why: &Value| {
            format!("warning: {}: {}", text(variant, "name"), why.as_str().unwrap_or_default())
        };
        list(variant, "warnings").iter().map(of)
    });
    out::line(lines.chain(doubts).collect::<Vec<_>>().join("\n"))
}

/// The task as the server has it, made there first if a folder was given that describes it; what that says of its rules holds
/// from now on.
fn task_of(api: &Api, wanted: &Wanted) -> anyhow::Result<modelless_types::Task> {
    let path = format!("/v1/tasks/{}", segment(&wanted.task));
    let reply = api.get(&path)?;
    let described = wanted.manifest.as_ref().filter(|manifest| manifest.name == wanted.task);
    if let (StatusCode::NOT_FOUND, Some(manifest)) = (reply.status, described) {
        task::create(api, manifest)?;
        return task::known(&api.get_soon(&path)?.ok()?.json()?);
    }
    let known = task::known(&reply.ok()?.json()?)?;
    let change = described.map(TaskManifest::change).unwrap_or_default();
    if change != TaskChange::default() {
        task::change(api, &wanted.task, change)?;
    }
    Ok(known)
}

fn read(path: &Path) -> anyhow::Result<Bytes> {
    Ok(fs::read(path).with_context(|| format!("cannot read {}", path.display()))?.into())
}

/// Sends bytes, unless they are there already, and gives their address there.
fn sent(api: &Api, bytes: Bytes) -> anyhow::Result<String> {
    let sha256 = sha256_of(&bytes[..])?;
    let there = api.get(&format!("/v1/artefacts/{sha256}"))?;
    if there.status.is_success() {
        return Ok(sha256);
    }
    let reply = api.send(Method::PUT, "/v1/artefacts", Some("application/octet-stream"), bytes)?.ok()?;
    let answer = reply.json()?;
    answer["sha256"].as_str().map(str::to_owned).context("the server kept the artefact but did not say where")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_there_gives_way_to_the_one_after_the_highest() {
        assert_eq!(free([].into_iter(), 1), 1);
        assert_eq!(free([1, 2, 7].into_iter(), 1), 8);
        assert_eq!(free([1, 2, 7].into_iter(), 3), 3, "it is free");
        assert_eq!(
            free([u64::from(u32::MAX)].into_iter(), u32::MAX),
            u32::MAX,
            "the server says that it is taken"
        );
    }
}
