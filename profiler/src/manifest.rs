//! The files that describe a task and its models, and the folder they stand in.
//!
//! A **package** is a folder with `task.toml` and `models/*.toml`. Paths in a manifest are relative to the manifest.
//! Nothing here looks at an artefact.

mod source;

use crate::error::Error;
use modelless_adapter::{AdapterSpec, SpecError, Tokenizer};
use modelless_store::{NewSpace, NewTask, SpaceKind, TaskChange};
use modelless_types::{
    Accuracy, AccuracyMeasure, AccuracyRule, Ahead, Batching, Bytes, CacheFor, CostPer1k, DeclaredRule,
    Engine, Fallback, Goals, KeepFor, LiveRule, Micros, Optimisation, Prefer, Priority, Processor,
    TaskBatching, TaskKind, TenantId, TensorSpec, VariantSettings,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use source::Source;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A task and its models.
#[derive(Clone, Debug)]
pub struct Package {
    /// The task.
    pub task: TaskManifest,
    /// Its models, in the order of their files' names.
    pub models: Vec<ModelManifest>,
}

/// A task to be made.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TaskManifest {
    /// The name in URLs.
    pub name: String,
    /// Input and output kind.
    pub kind: TaskKind,
    /// Name of the one metric.
    #[serde(default = "top_1")]
    pub metric: String,
    /// Which figure floors are compared with.
    #[serde(default)]
    pub accuracy_rule: AccuracyRule,
    /// What feedback is good for. None: in a task that is there whatever holds, else the usual.
    pub live_accuracy: Option<LiveRule>,
    /// What accuracies are good for that nobody measured. None: the same.
    pub declared_accuracy: Option<DeclaredRule>,
    /// For how long answers may be given again to who asks the very same. None: the same.
    pub cache: Option<CacheFor>,
    /// For how long its variants stay in memory after its last query. None: the same.
    pub keep: Option<KeepFor>,
    /// Whether what earlier days tell of it counts before it is asked for. None: the same.
    pub ahead: Option<Ahead>,
    /// Output labels, for classification.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Inputs of one item, for `tensor` tasks.
    #[serde(default)]
    pub inputs: Vec<TensorSpec>,
    /// Outputs of one item, for `tensor` tasks.
    #[serde(default)]
    pub outputs: Vec<TensorSpec>,
    /// The output space that is answered in by default, for vectors.
    pub space: Option<SpaceManifest>,
    /// One sentence for people.
    #[serde(default)]
    pub description: String,
    /// How its queries share batches, such as `deadline` or `fixed:16:5ms`. None: as each node is set.
    pub batching: Option<Batching>,
    /// Goals that hold where a query gives none.
    #[serde(default)]
    goals: GoalsManifest,
    /// What its models are measured with.
    pub labelled_set: Option<SetManifest>,
    /// A file of accuracies known from elsewhere.
    pub also: Option<PathBuf>,
    /// Where the manifest stands.
    #[serde(skip)]
    folder: PathBuf,
}

/// An output space of vectors.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceManifest {
    /// Unique for its owner.
    pub name: String,
    /// How many numbers its vectors have.
    pub dimension: u32,
}

/// A labelled set, by its file.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetManifest {
    /// What it is called where its figures are shown.
    pub name: String,
    /// See [`crate::LabelledSet::open`].
    pub path: PathBuf,
}

#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GoalsManifest {
    accuracy: Option<f64>,
    latency_ms: Option<f64>,
    max_cost: Option<f64>,
    prefer: Option<Prefer>,
    priority: Option<u8>,
    fallback: Option<Fallback>,
}

/// A model to be registered.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelManifest {
    /// Unique in its task, together with `version`.
    pub name: String,
    /// The task it is for, where that is not said otherwise.
    pub task: Option<String>,
    /// The owner's version.
    #[serde(default = "one")]
    pub version: u32,
    /// Family.
    #[serde(default)]
    pub architecture: String,
    /// Licence.
    #[serde(default)]
    pub licence: String,
    /// Whom to ask about it: a person or a team.
    #[serde(default)]
    pub owner: String,
    /// The output space of its vectors; left out, the task's default.
    pub space: Option<String>,
    /// How accurate it is said to be, for when there is no labelled set.
    pub accuracy: Option<f64>,
    /// The labels that it was trained with, in the order of its outputs: compared with the task's.
    pub labels: Option<Vec<String>>,
    /// What its accuracy means: compared with the task's.
    pub metric: Option<String>,
    /// Between the task and its tensors.
    pub adapter: AdapterSpec,
    /// Its file, in place of `variants`, where it is run in one way only: by ONNX Runtime, in fp32.
    pub artefact: Option<PathBuf>,
    /// How it is made runnable.
    #[serde(default)]
    pub variants: Vec<VariantManifest>,
    /// Where all of that stands.
    #[serde(skip)]
    source: Source,
}

/// A variant to be registered.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantManifest {
    /// Unique in its task; left out, the model's name, its version from the second on, and the precision.
    #[serde(default)]
    pub name: String,
    /// The library that runs it.
    #[serde(default = "onnx")]
    pub engine: Engine,
    /// Numbers it computes in.
    pub precision: String,
    /// The artefact.
    pub file: PathBuf,
    /// Threads of one run.
    #[serde(default = "one_thread")]
    pub threads: u16,
    /// The largest batch it may be given.
    #[serde(default = "max_batch")]
    pub max_batch: u32,
    /// How far the graph may be rewritten.
    #[serde(default)]
    pub optimisation: Optimisation,
    /// What it computes on.
    #[serde(default)]
    pub processor: Processor,
    /// The most memory of a GPU that one replica takes for each of its streams, in bytes.
    #[serde(default)]
    pub gpu_memory: Option<Bytes>,
    /// The most bytes that one item's strings take in one tensor.
    #[serde(default)]
    pub string_bytes: Option<Bytes>,
}

fn top_1() -> String {
    "top-1".to_owned()
}

fn one() -> u32 {
    1
}

fn onnx() -> Engine {
    Engine::Onnx
}

fn one_thread() -> u16 {
    1
}

fn max_batch() -> u32 {
    32
}

impl Package {
    /// Reads `task.toml` and `models/*.toml` in a folder.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let task = TaskManifest::read(&folder.join("task.toml"))?;
        let models = folder.join("models");
        let unreadable = |source| Error::Read { path: models.clone(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(&models).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|end| end == "toml") {
                files.push(path);
            }
        }
        files.sort();
        let models = files.iter().map(|path| ModelManifest::read(path)).collect::<Result<_, _>>()?;
        Ok(Self { task, models })
    }
}

impl TaskManifest {
    /// Reads one.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut task: Self = read_toml(path)?;
        let folder = folder_of(path);
        if let Some(set) = &mut task.labelled_set {
            set.path = folder.join(&set.path);
        }
        task.goals().map_err(|why| Error::Manifest { path: path.to_owned(), why })?;
        task.folder = folder;
        Ok(task)
    }

    /// Where it stands.
    pub fn path(&self) -> PathBuf {
        self.folder.join("task.toml")
    }

    /// As the store takes it.
    pub fn new_task(&self, tenant: TenantId) -> Result<NewTask, Error> {
        let why = |why| Error::Manifest { path: self.folder.join("task.toml"), why };
        Ok(NewTask {
            tenant,
            name: self.name.clone(),
            kind: self.kind,
            metric: self.metric.clone(),
            accuracy_rule: self.accuracy_rule,
            live_accuracy: self.live_accuracy.unwrap_or_default(),
            declared_accuracy: self.declared_accuracy.unwrap_or_default(),
            labels: self.labels.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            space: self.space.as_ref().map(|space| NewSpace {
                name: space.name.clone(),
                kind: SpaceKind::Embedding { dimension: space.dimension },
            }),
            defaults: self.goals().map_err(why)?,
            batching: self.batching,
            cache: self.cache.unwrap_or_default(),
            keep: self.keep.unwrap_or_default(),
            ahead: self.ahead.unwrap_or_default(),
            description: self.description.clone(),
        })
    }

    /// What it wants otherwise in the task that is there.
    pub fn change(&self) -> TaskChange {
        let Self { live_accuracy, declared_accuracy, cache, keep, ahead, .. } = *self;
        let batching = self.batching.map(TaskBatching::Own);
        TaskChange { live_accuracy, declared_accuracy, cache, keep, ahead, batching }
    }

    /// Accuracies known from elsewhere, by the name of the variant.
    pub fn also(&self) -> Result<BTreeMap<String, Vec<AccuracyMeasure>>, Error> {
        let Some(file) = &self.also else { return Ok(BTreeMap::new()) };
        let path = self.folder.join(file);
        let text = fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let known: BTreeMap<String, AccuracyMeasure> = serde_json::from_slice(&text)
            .map_err(|error| Error::Manifest { path, why: error.to_string() })?;
        Ok(known.into_iter().map(|(variant, measure)| (variant, vec![measure])).collect())
    }

    fn goals(&self) -> Result<Goals, String> {
        let GoalsManifest { accuracy, latency_ms, max_cost, prefer, priority, fallback } = self.goals;
        Ok(Goals {
            accuracy: number("accuracy", "between 0 and 1", accuracy, Accuracy::floor_from_f64)?,
            latency: number("latency_ms", "not negative", latency_ms, Micros::from_millis_f64)?,
            max_cost: number("max_cost", "not negative", max_cost, CostPer1k::from_usd_f64)?,
            prefer,
            priority: match priority {
                Some(level) => {
                    let known = Priority::new(level);
                    known.ok_or_else(|| format!("the goal priority is {level}; it must be 0 to 9"))?
                }
                None => Priority::default(),
            },
            fallback: fallback.unwrap_or_default(),
            model: None,
            variant: None,
            among: None,
        })
    }
}

fn number<T>(
    goal: &str,
    allowed: &str,
    value: Option<f64>,
    read: fn(f64) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(value) = value else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| format!("the goal {goal} is {value}; it must be {allowed}"))
}

impl ModelManifest {
    /// Reads one; its paths become usable from anywhere.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text =
            fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let mut model: Self = parse(path, &text)?;
        model.source = Source::File { path: path.to_owned(), text };
        model.whole(&folder_of(path))
    }

    /// One that stands in no file: ONNX, run in one way, until it is told otherwise. It is whole once
    /// [`ModelManifest::told`] was called.
    pub fn of_file(name: String, file: PathBuf, adapter: AdapterSpec) -> Self {
        Self {
            name,
            task: None,
            version: one(),
            architecture: String::new(),
            licence: String::new(),
            owner: String::new(),
            space: None,
            accuracy: None,
            labels: None,
            metric: None,
            adapter,
            artefact: None,
            variants: vec![VariantManifest::of(file)],
            source: Source::Options,
        }
    }

    /// What options told of one that stands in no file holds as if it stood in one.
    pub fn told(self) -> Result<Self, Error> {
        self.whole(Path::new(""))
    }

    /// Whatever it can be judged by alone; its paths become usable from anywhere.
    fn whole(mut self, folder: &Path) -> Result<Self, Error> {
        if let Err(error) = self.adapter.check() {
            let setting = if let SpecError::Setting { setting, .. } = &error { setting } else { "[adapter" };
            return Err(self.fault(&[setting], error.to_string()));
        }
        match (self.artefact.take(), self.variants.is_empty()) {
            (Some(file), true) => self.variants.push(VariantManifest::of(file)),
            (Some(_), false) => {
                let why = "`artefact` and [[variants]] are both there; a variant says its own `file`";
                return Err(self.fault(&["artefact"], why.to_owned()));
            }
            (None, false) => {}
            (None, true) => {
                let why =
                    "the model has neither `artefact` nor [[variants]]; it needs at least one way to be run";
                return Err(self.source.fault(None, why.to_owned()));
            }
        }
        if let Some(accuracy) = self.accuracy.filter(|accuracy| !(0.0..=1.0).contains(accuracy)) {
            let why = format!("accuracy is {accuracy}; it must be between 0 and 1");
            return Err(self.fault(&["accuracy"], why));
        }
        self.place(folder);
        Ok(self)
    }

    fn place(&mut self, folder: &Path) {
        if let Some(file) = self.adapter.tokenizer() {
            let file = folder.join(file).to_string_lossy().into_owned();
            self.adapter.set_tokenizer(file);
        }
        for variant in &mut self.variants {
            variant.file = folder.join(&variant.file);
            if variant.name.is_empty() {
                variant.name = usual_variant_name(&self.name, self.version, &variant.precision);
            }
        }
    }

    /// Something is wrong at the first of these settings that the manifest has.
    pub(crate) fn fault(&self, settings: &[&str], why: String) -> Error {
        self.source.fault_at(settings, why)
    }

    /// Something is wrong with the file of a variant.
    pub(crate) fn fault_of(&self, variant: usize, why: String) -> Error {
        let line = self.source.line("file", variant).or_else(|| self.source.line("artefact", 0));
        self.source.fault(line, why)
    }
}

impl ModelManifest {
    /// The file that its adapter names, where it names one.
    pub fn tokenizer(&self) -> Result<Option<Arc<Tokenizer>>, Error> {
        let Some(path) = self.adapter.tokenizer().map(PathBuf::from) else { return Ok(None) };
        let at = |why: String| self.fault(&["tokenizer"], why);
        let file =
            fs::read(&path).map_err(|error| at(format!("the tokenizer {}: {error}", path.display())))?;
        Tokenizer::read(&file).map(Some).map_err(|error| at(error.to_string()))
    }

    /// Where it stands.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// What stands there.
    pub(crate) fn text(&self) -> &str {
        self.source.text()
    }

    /// As decisions compare it.
    pub fn declared(&self) -> Option<Accuracy> {
        self.accuracy.and_then(Accuracy::floor_from_f64)
    }
}

impl VariantManifest {
    fn of(file: PathBuf) -> Self {
        Self {
            name: String::new(),
            engine: onnx(),
            precision: "fp32".to_owned(),
            file,
            threads: one_thread(),
            max_batch: max_batch(),
            optimisation: Optimisation::default(),
            processor: Processor::default(),
            gpu_memory: None,
            string_bytes: None,
        }
    }

    /// As the store and the engine take it.
    pub fn settings(&self) -> VariantSettings {
        VariantSettings {
            engine: self.engine,
            precision: self.precision.clone(),
            threads: self.threads,
            max_batch: self.max_batch,
            optimisation: self.optimisation,
            processor: self.processor,
            gpu_memory: self.gpu_memory,
            string_bytes: self.string_bytes,
        }
    }
}

/// What a variant is called where nobody says: names are unique in a task, so those of later versions say which.
pub fn usual_variant_name(model: &str, version: u32, precision: &str) -> String {
    match version {
        0 | 1 => format!("{model}-{precision}"),
        _ => format!("{model}.v{version}-{precision}"),
    }
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or_default()
}

fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(path, &text)
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|error| Error::Manifest {
        path: path.to_owned(),
        why: error.to_string().trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_testkit::temp_dir;

    fn examples() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
    }

    #[test]
    fn the_demo_is_a_ladder_of_twelve_variants() {
        let demo = Package::read(&examples().join("fashion")).unwrap();
        let names: Vec<_> = demo.models.iter().flat_map(|model| &model.variants).collect();
        assert_eq!(names.len(), 12);
        assert!(names.iter().any(|variant| variant.name == "cnn_m-int8"));
        assert!(names.iter().all(|variant| variant.file.is_file() && variant.settings().max_batch == 32));
        assert_eq!(demo.task.labels.len(), 10);
        assert!(demo.task.labelled_set.unwrap().path.is_file());
        let tensors = Package::read(&examples().join("fashion-tensor")).unwrap();
        assert_eq!(tensors.task.kind, TaskKind::Tensor);
        assert_eq!(tensors.models[0].variants[0].name, "cnn_m-fp32");
        assert!(tensors.models[0].variants[0].file.is_file());
    }

    #[test]
    fn goals_of_a_task_are_read_as_written() {
        let folder = temp_dir("manifest").unwrap();
        let path = folder.path().join("task.toml");
        let text = "name = \"t\"\nkind = \"image-classification\"\nlabels = [\"a\"]\n[goals]\n";
        fs::write(&path, format!("{text}accuracy = 0.9155\nlatency_ms = 12.5\nprefer = \"cost\"")).unwrap();
        let goals = TaskManifest::read(&path).unwrap().new_task(TenantId::DEFAULT).unwrap().defaults;
        assert_eq!(goals.accuracy.map(Accuracy::ppm), Some(915_500));
        assert_eq!(goals.latency, Some(Micros(12_500)));
        assert_eq!(goals.prefer, Some(Prefer::Cost));
        fs::write(&path, format!("{text}accuracy = 1.5")).unwrap();
        let error = TaskManifest::read(&path).unwrap_err().to_string();
        assert!(error.contains("accuracy is 1.5") && error.contains("between 0 and 1"), "{error}");
    }

    #[test]
    fn says_what_is_wrong_with_a_model() {
        let folder = temp_dir("manifest").unwrap();
        let path = folder.path().join("model.toml");
        let adapter = "[adapter]\nkind = \"tensor\"\n";
        for (text, said) in [
            (format!("name = \"m\"\n{adapter}"), "variants"),
            (format!("name = \"m\"\nvariants = []\n{adapter}"), "at least one"),
            (
                format!(
                    "name = \"m\"\nartefact = \"x\"\nvariants = [{{precision=\"fp32\", file=\"x\"}}]\n{adapter}"
                ),
                "line 2: `artefact`",
            ),
            (format!("name = \"m\"\ncolour = 1\n{adapter}"), "colour"),
            (
                format!(
                    "name = \"m\"
accuracy = 93
variants = [{{precision=\"fp32\", file=\"x\"}}]
{adapter}"
                ),
                "between 0 and 1",
            ),
            ("name = ".to_owned(), "TOML"),
        ] {
            fs::write(&path, &text).unwrap();
            let error = ModelManifest::read(&path).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("model.toml"), "{text}: {error}");
        }
        assert!(matches!(ModelManifest::read(&folder.path().join("none")), Err(Error::Read { .. })));
    }
}
