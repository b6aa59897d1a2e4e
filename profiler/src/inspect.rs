//! A model's manifest against its files and its task, before anything is sent, stored or loaded: what does not fit is
//! told with the manifest's line.

use crate::error::Error;
use crate::manifest::ModelManifest;
use crate::onnx::{Declared, OnnxModel};
use crate::torchscript::{Argument, TorchScript};
use modelless_adapter::text::Pooling;
use modelless_adapter::{Adapter, AdapterSpec, SpecError, Tokenizer};
use modelless_types::{DType, Engine, Task, TaskKind, TensorSpec};
use std::fs;
use std::path::Path;
use std::sync::Arc;

impl ModelManifest {
    /// Whether it fits the task, as far as its files say without being run: ONNX says what a model takes and gives, other
    /// formats do not.
    pub fn inspect(&self, task: &Task) -> Result<(), Error> {
        if let Some(metric) = self.metric.as_ref().filter(|metric| **metric != task.metric) {
            return Err(self.fault(
                &["metric"],
                format!(
                    "`metric` is {metric:?}, but accuracy of the task {:?} means {:?}",
                    task.name, task.metric
                ),
            ));
        }
        if let Some(labels) = self.labels.as_ref().filter(|labels| **labels != task.labels) {
            return Err(self.fault(&["labels"], differing(labels, task)));
        }
        if self.adapter.kind() != task.kind {
            let (adapter, task, kind) = (self.adapter.kind().name(), task.name.clone(), task.kind.name());
            return Err(self.unfit(&SpecError::Kind { adapter, task, kind }));
        }
        if let (Some(space), None) = (&self.space, self.adapter.dimension()) {
            return Err(self.fault(&["space"], no_vectors(space)));
        }
        let tokenizer = self.tokenizer()?;
        for (number, variant) in self.variants.iter().enumerate() {
            let at = |why: String| self.fault_of(number, format!("{}: {why}", variant.file.display()));
            if variant.engine == Engine::Remote {
                if !variant.file.is_file() {
                    return Err(at("there is no such file".to_owned()));
                }
                continue;
            }
            let content = content(&variant.file).map_err(at)?;
            let found = fits(variant.engine, &content, (&self.adapter, task, tokenizer.as_ref()));
            found.map_err(|unfit| match unfit {
                Unfit::File(why) => at(why),
                Unfit::Adapter(error) => self.unfit(&error),
            })?;
        }
        Ok(())
    }

    /// What an adapter says of a model that it does not fit, at the setting that says otherwise.
    fn unfit(&self, error: &SpecError) -> Error {
        let at: Vec<&str> = match error {
            SpecError::Setting { setting, .. } => vec![setting, "[adapter"],
            SpecError::Kind { .. } => vec!["kind", "[adapter"],
            SpecError::Tokenizer { .. } => vec!["tokenizer", "[adapter"],
            SpecError::Tensor { side, .. } => vec![side, "[adapter"],
            SpecError::NoTensor { .. } => vec!["output", "[adapter.tokens", "[adapter"],
            SpecError::Notation(_) | SpecError::Task { .. } => vec!["[adapter"],
        };
        self.fault(&at, error.to_string())
    }
}

/// Why a file cannot be a variant of a model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    /// It is none that its engine could run, or none for the task.
    #[error("{0}")]
    File(String),
    /// The adapter says otherwise.
    #[error(transparent)]
    Adapter(SpecError),
}

/// Whether what a file holds fits adapter and task, as far as it says without being run. What lies at a server is not looked at.
pub(crate) fn fits(
    engine: Engine,
    content: &[u8],
    (adapter, task, tokenizer): (&AdapterSpec, &Task, Option<&Arc<Tokenizer>>),
) -> Result<(), Unfit> {
    match engine {
        Engine::Onnx | Engine::Openvino => {
            let model = parse(content).map_err(Unfit::File)?;
            let (inputs, outputs) = items(&model, adapter, task).map_err(Unfit::File)?;
            bind(adapter, task, tokenizer, (&inputs, &outputs)).map_err(Unfit::Adapter)
        }
        Engine::Torch => torchscript(content, adapter, task).map_err(Unfit::File),
        Engine::Remote => Ok(()),
    }
}

/// Why what gives no vectors cannot have an output space.
pub(crate) fn no_vectors(space: &str) -> String {
    format!("`space` is {space:?}, but only vectors have a space of their own")
}

fn differing(labels: &[String], task: &Task) -> String {
    let known = &task.labels;
    let first = labels.iter().zip(known).position(|(own, known)| own != known);
    let how = match first {
        Some(at) => format!("number {} is {:?} here and {:?} there", at + 1, labels[at], known[at]),
        None => format!("there are {} here and {} there", labels.len(), known.len()),
    };
    format!("`labels` are not those of the task {:?}: {how}", task.name)
}

pub(crate) fn read(file: &Path) -> Result<OnnxModel, String> {
    parse(&content(file)?)
}

fn content(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("it cannot be read: {error}"))
}

fn parse(content: &[u8]) -> Result<OnnxModel, String> {
    let model = OnnxModel::read(content).map_err(|why| format!("{why}; expected an ONNX model"))?;
    if model.opset.is_none_or(|version| version == 0) {
        return Err("it does not say which version of the operators (opset) it is made of; export it again"
            .to_owned());
    }
    if model.external {
        let why = "its weights lie in files beside it, which would not come along; save it as one file";
        return Err(why.to_owned());
    }
    Ok(model)
}

/// TorchScript names no shapes, but how many tensors it takes and gives; which ones they are is told by their order.
fn torchscript(content: &[u8], adapter: &AdapterSpec, task: &Task) -> Result<(), String> {
    let model = TorchScript::read(content).map_err(|why| format!("{why}; expected a TorchScript model"))?;
    let (given, wanted) = adapter.tensors(task);
    let signature = || {
        let argument = |input: &Argument| format!("{}: {}", input.name, input.kind);
        let arguments: Vec<String> = model.inputs.iter().map(argument).collect();
        format!("forward({}) -> {}", arguments.join(", "), model.output)
    };
    let names: Vec<String> = given.iter().map(|tensor| format!("`{}`", tensor.name)).collect();
    if let Some(other) = model.inputs.iter().take(given.len()).find(|input| !input.takes_a_tensor()) {
        return Err(format!(
            "its `{}` takes {}, and tensors are all that it can be given: {}",
            other.name,
            other.kind,
            signature()
        ));
    }
    let needed = model.inputs.iter().filter(|input| !input.may_be_left_out).count();
    if given.len() < needed || given.len() > model.inputs.len() {
        return Err(format!(
            "it takes {needed} tensors and is given {} ({}): {}",
            given.len(),
            names.join(", "),
            signature()
        ));
    }
    match model.outputs() {
        Some(gives) if gives < wanted.len() => Err(format!(
            "it gives {gives} tensors and the task has {} outputs: {}",
            wanted.len(),
            signature()
        )),
        None if !model.output.contains("Tensor") => {
            Err(format!("it gives no tensors at all: {}", signature()))
        }
        Some(_) | None => Ok(()),
    }
}

/// One item of each tensor, with open axes as adapter and task say.
pub(crate) fn items(
    model: &OnnxModel,
    adapter: &AdapterSpec,
    task: &Task,
) -> Result<(Vec<TensorSpec>, Vec<TensorSpec>), String> {
    let (inputs, named) = adapter.tensors(task);
    let batch = |tensor: &Declared| tensor.axes.as_ref().and_then(|axes| axes.first().copied());
    let first = model
        .inputs
        .first()
        .and_then(batch)
        .ok_or("its first input has no axes, but the first axis must be the batch")?;
    if let Some(other) = model.inputs.iter().find(|input| batch(input) != Some(first)) {
        return Err(format!(
            "the first axis of every input must be the batch, but that of `{}` is another than that of `{}`",
            other.name, model.inputs[0].name
        ));
    }
    let item = |tensor: &Declared, expected: Option<&[u32]>| -> Result<TensorSpec, String> {
        let dtype = tensor
            .dtype
            .ok_or_else(|| format!("`{}` is of a type that no engine here takes", tensor.name))?;
        let axes = tensor.axes.as_deref().unwrap_or_default();
        let rest = axes.get(1..).unwrap_or_default();
        let expected = expected.filter(|expected| expected.len() == rest.len());
        let shape = rest.iter().enumerate().map(|(at, axis)| {
            // An axis that nobody knows does not fit anything; only whoever uses it will mind.
            axis.or_else(|| expected.map(|expected| expected[at])).unwrap_or(0)
        });
        Ok(TensorSpec { name: tensor.name.clone(), dtype, shape: shape.collect() })
    };
    let of = |specs: &[TensorSpec], name: &str| {
        specs.iter().find(|spec| spec.name == name).map(|spec| spec.shape.clone())
    };
    let all_inputs = model
        .inputs
        .iter()
        .map(|input| item(input, of(&inputs, &input.name).as_deref()))
        .collect::<Result<_, _>>()?;
    let outputs = model.outputs.iter().map(|output| {
        let known = of(&named, &output.name).unwrap_or_else(|| usual(output, adapter, task));
        item(output, Some(&known))
    });
    Ok((all_inputs, outputs.collect::<Result<_, _>>()?))
}

/// The same of TorchScript, which says nothing of its tensors: as adapter and task say.
pub(crate) fn expected(adapter: &AdapterSpec, task: &Task) -> (Vec<TensorSpec>, Vec<TensorSpec>) {
    let (inputs, outputs) = adapter.tensors(task);
    if !outputs.is_empty() {
        return (inputs, outputs);
    }
    // A vector for each word is what is pooled.
    let pools = |adapter: &AdapterSpec| matches!(adapter, AdapterSpec::FeatureExtraction(e) if e.pooling != Pooling::None);
    let axes = if pools(adapter) { 3 } else { 2 };
    let name = adapter.output().unwrap_or("output").to_owned();
    let declared = Declared { name: name.clone(), dtype: Some(DType::Fp32), axes: Some(vec![None; axes]) };
    let shape = usual(&declared, adapter, task);
    (inputs, vec![TensorSpec { name, dtype: DType::Fp32, shape }])
}

/// What an item of an output looks like where its axes are open and the task does not name it.
fn usual(output: &Declared, adapter: &AdapterSpec, task: &Task) -> Vec<u32> {
    let count = u32::try_from(task.labels.len()).unwrap_or(u32::MAX);
    match (task.kind, adapter.dimension(), adapter.longest()) {
        (TaskKind::FeatureExtraction, Some(dimension), Some(longest)) => {
            if output.axes.as_ref().is_some_and(|axes| axes.len() == 3) {
                vec![longest, dimension]
            } else {
                vec![dimension]
            }
        }
        (TaskKind::ImageClassification | TaskKind::TextClassification, _, _) => vec![count],
        (TaskKind::FeatureExtraction | TaskKind::Tensor, _, _) => Vec::new(),
    }
}

fn bind(
    adapter: &AdapterSpec,
    task: &Task,
    tokenizer: Option<&Arc<Tokenizer>>,
    (inputs, outputs): (&[TensorSpec], &[TensorSpec]),
) -> Result<(), SpecError> {
    let preparation = adapter.preparation(task, tokenizer)?;
    Adapter::prepared(adapter, task, preparation, inputs, outputs).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::TaskManifest;
    use modelless_testkit::temp_dir;
    use modelless_types::{SpaceId, TaskId, TenantId};
    use std::path::PathBuf;

    fn repository(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
    }

    fn task(text: &str) -> Task {
        let folder = temp_dir("inspect").unwrap();
        let path = folder.path().join("task.toml");
        fs::write(&path, text).unwrap();
        let new = TaskManifest::read(&path).unwrap().new_task(TenantId::DEFAULT).unwrap();
        Task {
            id: TaskId(1),
            name: new.name,
            tenant: new.tenant,
            kind: new.kind,
            metric: new.metric,
            accuracy_rule: new.accuracy_rule,
            live_accuracy: new.live_accuracy,
            declared_accuracy: new.declared_accuracy,
            labels: new.labels,
            inputs: new.inputs,
            outputs: new.outputs,
            default_space: SpaceId(1),
            defaults: new.defaults,
            batching: None,
            cache: new.cache,
            keep: new.keep,
            ahead: new.ahead,
            description: new.description,
        }
    }

    const SENTENCES: &str = "name = \"s\"\nkind = \"feature-extraction\"\nmetric = \"nearest\"\n\
                             space = { name = \"tiny\", dimension = 8 }\n";

    /// What is said of a model with these lines in its manifest.
    fn said(task: &Task, lines: &str) -> Result<(), String> {
        let folder = temp_dir("inspect").unwrap();
        for file in ["tiny.onnx", "tokenizer.json"] {
            fs::copy(repository("crates/adapter/tests/golden/text").join(file), folder.path().join(file))
                .unwrap();
        }
        fs::copy(repository("examples/fashion/models/cnn_m.onnx"), folder.path().join("cnn.onnx")).unwrap();
        fs::write(folder.path().join("text.onnx"), "no model").unwrap();
        for file in ["echo.pt", "types.pt"] {
            fs::copy(repository("crates/engine/tests/models").join(file), folder.path().join(file)).unwrap();
        }
        let whole = fs::read(folder.path().join("echo.pt")).unwrap();
        fs::write(folder.path().join("half.pt"), &whole[..whole.len() / 2]).unwrap();
        let path = folder.path().join("model.toml");
        fs::write(&path, lines).unwrap();
        let read = ModelManifest::read(&path).and_then(|model| model.inspect(task));
        read.map_err(|error| error.to_string().replace(&folder.path().display().to_string(), ""))
    }

    const TINY: &str = "name = \"tiny\"\nartefact = \"tiny.onnx\"\naccuracy = 0.5\n\n[adapter]\nkind = \"feature-extraction\"\n\
                        output = \"last_hidden_state\"\ndimension = 8\n\n[adapter.tokens]\ntokenizer = \"tokenizer.json\"\nmax = 64\n";

    #[test]
    fn a_model_that_fits_is_let_through() {
        let sentences = task(SENTENCES);
        assert_eq!(said(&sentences, TINY), Ok(()));
        let words = task("name = \"w\"\nkind = \"text-classification\"\nlabels = [\"a\", \"b\"]\n");
        let labels = TINY.replace("feature-extraction", "text-classification").replace("dimension = 8\n", "");
        assert_eq!(said(&words, &labels.replace("last_hidden_state", "logits")), Ok(()));
        for name in ["fashion", "fashion-tensor"] {
            let package = crate::Package::read(&repository("examples").join(name)).unwrap();
            let text = fs::read_to_string(repository("examples").join(name).join("task.toml")).unwrap();
            let task = task(&text.split("[labelled-set]").next().unwrap().replace("also =", "# also ="));
            assert!(package.models.iter().all(|model| model.inspect(&task).is_ok()), "{name}");
        }
    }

    #[test]
    fn torchscript_that_does_not_fit_is_told_with_its_signature_and_line() {
        let tensors = |inputs: &str| {
            let outputs = "outputs = [{ name = \"y\", dtype = \"FP32\", shape = [4] }]";
            task(&format!(
                "name = \"t\"\nkind = \"tensor\"\nmetric = \"accuracy\"\ninputs = [{inputs}]\n{outputs}\n"
            ))
        };
        let one = "{ name = \"x\", dtype = \"FP32\", shape = [4] }";
        let two = format!("{one}, {}", one.replace("\"x\"", "\"z\""));
        let manifest = |file: &str| {
            format!(
                "name = \"m\"\n[[variants]]\nengine = \"torch\"\nprecision = \"fp32\"\nfile = \"{file}\"\n[adapter]\n\
                 kind = \"tensor\"\n"
            )
        };
        assert_eq!(said(&tensors(one), &manifest("echo.pt")), Ok(()));
        for (inputs, file, words) in [
            (
                two.as_str(),
                "echo.pt",
                "it takes 1 tensors and is given 2 (`x`, `z`): forward(x: Tensor) -> Tensor",
            ),
            (one, "types.pt", "it takes 8 tensors and is given 1"),
            (one, "half.pt", "no zip archive, or damaged; expected a TorchScript model"),
            (one, "cnn.onnx", "expected a TorchScript model"),
            (one, "none.pt", "cannot be read"),
        ] {
            let error = said(&tensors(inputs), &manifest(file)).unwrap_err();
            assert!(error.contains("line 5:") && error.contains(words), "{file}: {error}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_line() {
        let sentences = task(SENTENCES);
        for (from, to, line, words) in [
            ("dimension = 8", "dimension = 9", 7, "floats [64, 9]"),
            (
                "last_hidden_state",
                "hidden",
                7,
                "the output `hidden`; the model has `last_hidden_state`, `logits`",
            ),
            ("last_hidden_state", "logits", 7, "pooling = \"none\""),
            ("feature-extraction", "text-classification", 5, "unknown field `dimension`"),
            ("tiny.onnx", "text.onnx", 2, "expected an ONNX model"),
            ("tiny.onnx", "none.onnx", 2, "cannot be read"),
            ("tiny.onnx", "cnn.onnx", 7, "the output `last_hidden_state`"),
            ("tokenizer.json", "text.onnx", 11, "tokenizer"),
            ("max = 64", "max = 1", 12, "3 to 32768"),
            ("accuracy = 0.5", "metric = \"top-1\"", 3, "\"nearest\""),
            ("accuracy = 0.5", "labels = [\"a\"]", 3, "1 here and 0 there"),
            ("accuracy = 0.5", "accuracy = 93", 3, "between 0 and 1"),
        ] {
            let manifest = TINY.replacen(from, to, 1);
            assert_ne!(manifest, TINY);
            let error = said(&sentences, &manifest).unwrap_err();
            let expected = [format!("line {line}:"), format!("line {line},")];
            assert!(
                expected.iter().any(|line| error.contains(line)) && error.contains(words),
                "{to}: {error}"
            );
        }
    }

    #[test]
    fn what_options_told_of_a_file_is_told_with_the_option() {
        let sentences = task(SENTENCES);
        let golden = repository("crates/adapter/tests/golden/text");
        let adapter = format!(
            "{{\"kind\": \"feature-extraction\", \"output\": \"last_hidden_state\", \"dimension\": 8, \
             \"tokens\": {{\"tokenizer\": \"{}\", \"max\": 64}}}}",
            golden.join("tokenizer.json").display()
        );
        let tensors = "name = \"t\"\nkind = \"tensor\"\ninputs = [{ name = \"x\", dtype = \"FP32\", shape = [1] }]\n\
                       outputs = [{ name = \"y\", dtype = \"FP32\", shape = [1] }]\n";
        let told = |task: &Task, adapter: &str, change: fn(&mut ModelManifest)| {
            let adapter = AdapterSpec::parse(adapter).unwrap();
            let mut model = ModelManifest::of_file("tiny".to_owned(), golden.join("tiny.onnx"), adapter);
            change(&mut model);
            let read = model.told().and_then(|model| model.inspect(task));
            read.map_err(|error| error.to_string())
        };
        let nothing: fn(&mut ModelManifest) = |_| ();
        let tensor = "{\"kind\": \"tensor\"}";
        assert_eq!(told(&sentences, &adapter, nothing), Ok(()));
        let error = told(&task(tensors), tensor, |m| m.space = Some("ours".to_owned())).unwrap_err();
        assert!(error.starts_with("--space: `space`"), "{error}");
        for (adapter, change, words) in [
            (
                adapter.as_str(),
                (|m| m.labels = Some(vec!["a".to_owned()])) as fn(&mut ModelManifest),
                "--labels: `labels`",
            ),
            (adapter.as_str(), |m| m.metric = Some("top-1".to_owned()), "--metric: `metric`"),
            (adapter.as_str(), |m| m.accuracy = Some(93.0), "--accuracy: "),
            (&adapter.replace("dimension\": 8", "dimension\": 9"), nothing, "--adapter: "),
            (&adapter.replace("tokenizer.json", "none.json"), nothing, "--adapter: the tokenizer"),
            (tensor, nothing, "--adapter: "),
        ] {
            let error = told(&sentences, adapter, change).unwrap_err();
            assert!(error.starts_with(words), "{words} {error}");
        }
    }
}
