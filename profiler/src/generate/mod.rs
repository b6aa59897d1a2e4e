//! Variants of one model that its author did not make: the model and a labelled set go into a box, other forms of it come out,
//! and a package is written that registers as it is.
//!
//! The work in the box is the program's in `profiler/generator`. Around it: sets that share no item ([`split()`]), tensors
//! as the adapter prepares them ([`crate::Dumped`]), the box (`run`), and what is made of the results (`package`). What was made is
//! found again by what it was made of, so a run that was cut short goes on where it stopped.

mod convert;
mod listen;
mod measured;
mod package;
mod prepare;
mod run;
mod split;
mod tools;

pub use listen::Step;
pub use measured::{Measured, measure};
pub use package::{Entry, Generated, Marks, write};
pub use run::{Outcome, Piece};
pub use split::{Calibration, Halves, split};
pub use tools::{Tools, size_of_tree};

use crate::error::Error;
use crate::manifest::{ModelManifest, TaskManifest, VariantManifest};
use crate::profile::{Profiler, Report};
use crate::set::LabelledSet;
use modelless_adapter::AdapterSpec;
use modelless_types::{Bytes, Engine, Task};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// All that can be made, as users name it. `size` are smaller inputs, each of which is a model of its own.
pub const RECIPES: [&str; 12] = [
    convert::ONNX,
    "optimised",
    "int8-dynamic",
    "int8-minmax",
    "int8-percentile",
    "int8-entropy",
    "svd-mild",
    "svd-strong",
    "svd-int8",
    "fp16",
    "size",
    convert::TORCHSCRIPT,
];

/// What is made only where it is asked for: libtorch has to be there, and on a CPU it is the slower of the two.
pub const ASKED_FOR: [&str; 1] = [convert::TORCHSCRIPT];

/// What is made of a model with a smaller input.
const OF_SMALLER: [&str; 3] = ["fp32", "int8-minmax", "int8-entropy"];

/// Items that variants are compared with their parent on.
const CHECKED: usize = 512;

/// Items of a batch while accuracy is measured.
const BATCH: u32 = 32;

/// What is to be made.
#[derive(Clone, Debug)]
pub struct Request {
    /// Of which model.
    pub model: ModelManifest,
    /// Of which of its variants.
    pub parent: usize,
    /// The task's manifest, which the package that is made has too.
    pub manifest: TaskManifest,
    /// What the model is for.
    pub task: Task,
    /// Two sets without a common item.
    pub sets: Halves,
    /// The folder of the package.
    pub out: PathBuf,
    /// Which of [`RECIPES`].
    pub recipes: Vec<String>,
    /// Widths of smaller inputs; empty for some that suit the model.
    pub widths: Vec<u32>,
    /// The version that the package gives the model.
    pub version: u32,
    /// What the process in the box may use.
    pub limits: Limits,
}

/// What the process in the box may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The program that enters a box, and the words before what is allowed.
    pub enter: Vec<OsString>,
    /// Memory.
    pub memory: Bytes,
    /// Seconds of a processor.
    pub cpu_seconds: u64,
    /// It runs even where this kernel lacks a layer of the box.
    pub unboxed: bool,
}

/// A model that variants are made of: the parent, or the same with a smaller input.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    /// Empty for the parent.
    pub(crate) name: String,
    pub(crate) adapter: AdapterSpec,
    recipes: Vec<String>,
}

/// Those of [`RECIPES`] that a word means: one of them, or the first part of several.
pub fn recipes(word: &str) -> Vec<&'static str> {
    let means = |recipe: &&str| {
        let rest = recipe.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let found: Vec<_> = RECIPES.into_iter().filter(means).collect();
    if word == "int8-static" { RECIPES[3..6].to_vec() } else { found }
}

/// The variant that others can be made of: in fp32, as ONNX or, where none is, as TorchScript.
pub fn parent_of(model: &ModelManifest, name: Option<&str>) -> Result<usize, Error> {
    let suits = |engine: Engine, precision: &str| {
        matches!(engine, Engine::Onnx | Engine::Torch) && precision == "fp32"
    };
    let first = |wanted: Engine| {
        let fits = |variant: &VariantManifest| variant.engine == wanted && variant.precision == "fp32";
        model.variants.iter().position(fits)
    };
    let found = match name {
        Some(name) => model.variants.iter().position(|variant| variant.name == name),
        None => first(Engine::Onnx).or_else(|| first(Engine::Torch)),
    };
    let refuse =
        |why: String| Error::Generator { model: model.name.clone(), name: "no-parent".to_owned(), why };
    let Some(at) = found else {
        let known: Vec<_> = model.variants.iter().map(|variant| variant.name.as_str()).collect();
        return Err(refuse(match name {
            Some(name) => format!("it has no variant {name:?}; it has {}", known.join(", ")),
            None => format!(
                "none of its variants ({}) is an ONNX or TorchScript file in fp32, which is what others are made of",
                known.join(", ")
            ),
        }));
    };
    let variant = &model.variants[at];
    if suits(variant.engine, &variant.precision) {
        return Ok(at);
    }
    Err(refuse(format!(
        "its variant {:?} is {} for {}; expected fp32 for onnx or torch, which is what others are made of",
        variant.name, variant.precision, variant.engine
    )))
}

impl Request {
    /// Makes variants and writes the package. `report` is told how far it is. What is of another format than its parent is
    /// compared with it by `profiler`'s engines, which [`Request::needs_torch`] asks for.
    pub async fn run(
        &self,
        tools: &Tools,
        profiler: Option<&Profiler>,
        report: &mut (dyn FnMut(Step<'_>) + Send),
    ) -> Result<Generated, Error> {
        self.model.inspect(&self.task)?;
        let work = self.work();
        fs::create_dir_all(work.join("made")).map_err(at(&work))?;
        let lock = File::create(work.join("lock")).map_err(at(&work))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = format!("another command is writing to {}", self.out.display());
                return Err(self.failed("busy", why));
            }
            Err(TryLockError::Error(error)) => return Err(at(&work)(error)),
        }
        let mut bases = self.bases();
        let missing = if self.needs_torch() { convert::missing(profiler).await } else { None };
        let profiler = profiler.filter(|_| missing.is_none());
        if let Some(why) = missing.clone().filter(|_| self.is_script()) {
            return Err(self.failed("no-libtorch", why));
        }
        bases[0].recipes.retain(|recipe| missing.is_none() || recipe != convert::TORCHSCRIPT);
        let job = self.prepare(&bases, report)?;
        let path = work.join("job.json");
        fs::write(&path, job.to_string()).map_err(at(&path))?;
        let wanted = bases
            .iter()
            .flat_map(|base| base.recipes.iter().map(|recipe| (base.name.clone(), recipe.clone())));
        let mut pieces = run::in_box(self, tools, (&work, wanted.collect()), report).await?;
        let told: Report<'_> = &mut |name: &str, _| {
            report(Step { what: &format!("comparing {name} with its parent"), done: 0, of: 1 });
        };
        if let Some(profiler) = profiler {
            self.compare_formats(&bases, &mut pieces, profiler, told).await?;
        }
        pieces.extend(missing.map(|why| Piece::unavailable(convert::TORCHSCRIPT, "fp32", why)));
        package::place(self, &bases, pieces)
    }

    /// Where everything lies that is not part of the package.
    pub(crate) fn work(&self) -> PathBuf {
        self.out.join(".work")
    }

    /// Whether the parent is TorchScript: then everything is made of the ONNX that it becomes.
    fn is_script(&self) -> bool {
        self.settings().engine == Engine::Torch
    }

    /// Whether an engine for TorchScript has a part in it.
    pub fn needs_torch(&self) -> bool {
        self.is_script() || self.recipes.iter().any(|recipe| recipe == convert::TORCHSCRIPT)
    }

    /// How the parent's file ends.
    fn parent_end(&self) -> &'static str {
        convert::end_of(self.settings().engine)
    }

    fn parent_file(&self) -> &Path {
        &self.model.variants[self.parent].file
    }

    pub(crate) fn failed(&self, name: &str, why: String) -> Error {
        Error::Generator { model: self.model.name.clone(), name: name.to_owned(), why }
    }

    /// Names of outputs that TorchScript does not name itself, as far as anybody does.
    fn outputs(&self) -> Vec<String> {
        let (_, outputs) = self.model.adapter.tensors(&self.task);
        let one = self.model.adapter.output().map(str::to_owned);
        if outputs.is_empty() {
            one.into_iter().collect()
        } else {
            outputs.into_iter().map(|o| o.name).collect()
        }
    }

    fn bases(&self) -> Vec<Base> {
        let wanted = |name: &&str| self.recipes.iter().any(|recipe| recipe == name);
        let script = self.is_script();
        // ONNX comes of TorchScript whatever else is wanted of it, for the rest is made of that.
        let own = RECIPES.iter().filter(|name| match **name {
            "size" => false,
            convert::ONNX => script,
            _ => wanted(name),
        });
        let mut bases = vec![Base {
            name: String::new(),
            adapter: self.model.adapter.clone(),
            recipes: own.map(|name| (*name).to_owned()).collect(),
        }];
        if let (AdapterSpec::ImageClassification(image), true) = (&self.model.adapter, wanted(&"size")) {
            let own = (image.width, image.height);
            let widths = if self.widths.is_empty() { usual_widths(own.0) } else { self.widths.clone() };
            for width in widths.into_iter().filter(|width| (1..own.0).contains(width)) {
                let scaled = |side: u32| (u64::from(side) * u64::from(width)).div_ceil(own.0.into());
                let scaled = |side: u32| u32::try_from(scaled(side)).unwrap_or(side).max(1);
                let mut smaller = image.clone();
                (smaller.width, smaller.height) = (width, scaled(own.1));
                smaller.resize.size = image.resize.size.map(scaled);
                bases.push(Base {
                    name: format!("at-{width}"),
                    adapter: AdapterSpec::ImageClassification(smaller),
                    recipes: OF_SMALLER.map(str::to_owned).to_vec(),
                });
            }
        }
        bases
    }
}

/// Items to compare with the parent on, evenly spread.
pub(super) fn spread(set: &LabelledSet) -> LabelledSet {
    let count = set.len().min(CHECKED);
    let items: Vec<usize> = (0..count).map(|number| number * set.len() / count).collect();
    set.part(&items, set.name().to_owned())
}

/// About five and six sevenths, as far as strides divide them.
fn usual_widths(width: u32) -> Vec<u32> {
    let step = if width >= 128 { 32 } else { 4 };
    let mut found: Vec<u32> = [5, 6].map(|part| (width * part / 7).next_multiple_of(step)).to_vec();
    found.retain(|smaller| *smaller < width && *smaller >= 16);
    found.dedup();
    found
}

pub(crate) fn after(between: &str, name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("{between}{name}") }
}

pub(crate) fn digest(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Write { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_means_one_recipe_or_all_that_begin_so() {
        assert_eq!(recipes("fp16"), ["fp16"]);
        assert_eq!(recipes("svd"), ["svd-mild", "svd-strong", "svd-int8"]);
        assert_eq!(recipes("int8").len(), 4);
        assert_eq!(recipes("int8-static"), ["int8-minmax", "int8-percentile", "int8-entropy"]);
        assert!(recipes("int").is_empty() && recipes("everything").is_empty());
    }

    #[test]
    fn smaller_inputs_are_multiples_that_strides_divide() {
        assert_eq!(usual_widths(224), [160, 192]);
        assert_eq!(usual_widths(28), [20, 24]);
        assert_eq!(usual_widths(260), [192, 224]);
        assert!(usual_widths(8).is_empty());
    }

    #[test]
    fn others_are_made_of_fp32_only_and_what_there_is_is_told() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/fashion/models/cnn_m.toml");
        let model = ModelManifest::read(&path).unwrap();
        assert_eq!(parent_of(&model, None).unwrap(), 0);
        assert_eq!(parent_of(&model, Some("cnn_m-fp32")).unwrap(), 0);
        for (name, said) in
            [("cnn_m-int8", "expected fp32 for onnx or torch"), ("x", "it has cnn_m-fp32, cnn_m-int8")]
        {
            let error = parent_of(&model, Some(name)).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
