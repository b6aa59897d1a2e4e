//! Everything that the box reads, written down before: the parent, tensors as the adapter prepares them, and the job.
//!
//! Each lies under a name that says what is in it, and gets that name in one rename when it is whole. So nothing has to be said
//! beside it of what it is: an interrupted run leaves what it finished, which the next one takes or, asked for something else,
//! leaves alone, and never a mixture.

use super::listen::Step;
use super::{BATCH, Base, Request, after, at, digest, spread};
use crate::dump::Dumped;
use crate::error::Error;
use crate::set::LabelledSet;
use modelless_adapter::AdapterSpec;
use modelless_types::TaskKind;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::Path;

/// What tensors and parents are called, before the digest of what they are of.
const TENSORS: &str = "tensors-";
const PARENT: &str = "parent-";
/// What adapters make of an input may be something else in another version.
const WRITER: &str = concat!(env!("CARGO_PKG_VERSION"), " 1");

impl Request {
    /// Writes everything that the box reads, unless it is there, and gives the job.
    pub(super) fn prepare(
        &self,
        bases: &[Base],
        report: &mut (dyn FnMut(Step<'_>) + Send),
    ) -> Result<Value, Error> {
        let work = self.work();
        let parent = fs::read(self.parent_file())
            .map_err(|source| Error::Read { path: self.parent_file().to_owned(), source })?;
        let checked = spread(&self.sets.accuracy);
        let (calibration, check) = (self.sets.calibration.pack()?, checked.pack()?);
        let parent_sha256 = digest(&[&parent]);
        let parent_name = format!("{PARENT}{parent_sha256}.{}", self.parent_end());
        self.write_once(&work.join(&parent_name), |staged| fs::write(staged, &parent).map_err(at(staged)))?;
        let (mut told, mut wanted, mut inputs) = (Vec::new(), vec![parent_name.clone()], Vec::new());
        for base in bases {
            let adapter = self.notation(&base.adapter)?;
            let mut folders = Vec::new();
            for (part, set, packed) in
                [("calibration", &self.sets.calibration, &calibration), ("check", &checked, &check)]
            {
                let of = [WRITER.as_bytes(), parent_sha256.as_bytes(), adapter.as_bytes(), packed];
                let name = format!("{TENSORS}{}", digest(&of));
                let what = format!("preparing the {part} set{}", after(" ", &base.name));
                self.write_once(&work.join(&name), |staged| self.dump(base, set, (staged, &what), report))?;
                wanted.push(name.clone());
                folders.push(name);
            }
            if base.name.is_empty() {
                inputs = self::inputs(&work.join(&folders[1]))?;
            }
            let shape = base.adapter.tensors(&self.task).0.first().map(|tensor| tensor.shape.clone());
            told.push(json!({
                "name": base.name,
                "size": shape.filter(|_| !base.name.is_empty()),
                "adapter_sha256": digest(&[adapter.as_bytes()]),
                "calibration": folders[0],
                "check": folders[1],
                "recipes": base.recipes,
            }));
        }
        clear_others(&work, &wanted);
        let mask = match &self.model.adapter {
            AdapterSpec::TextClassification(labels) => Some(&labels.tokens.mask),
            AdapterSpec::FeatureExtraction(embedding) => Some(&embedding.tokens.mask),
            AdapterSpec::ImageClassification(_) | AdapterSpec::Tensor(_) => None,
        };
        // A task of tensors whose first output is a row of scores is judged as what it is; nothing says so but its metric.
        let scores = self.task.kind == TaskKind::Tensor && self.task.metric == "top-1";
        let kind = if scores { TaskKind::ImageClassification } else { self.task.kind };
        Ok(json!({
            "parent": parent_name,
            "script": self.is_script(),
            "inputs": inputs,
            "outputs": self.outputs(),
            "parent_sha256": parent_sha256,
            "data_sha256": digest(&[&calibration, &check]),
            "kind": kind.name(),
            "input": inputs.first().map(|input| input["name"].clone()),
            "output": self.model.adapter.output(),
            "mask": mask,
            "made": "made",
            "bases": told,
        }))
    }

    /// An adapter as text that says all that it does: the file that it names by what is in it, not by where it lies.
    pub(super) fn notation(&self, adapter: &AdapterSpec) -> Result<String, Error> {
        let mut adapter = adapter.clone();
        if let Some(path) = adapter.tokenizer().map(str::to_owned) {
            let content = fs::read(&path).map_err(|source| Error::Read { path: path.into(), source })?;
            adapter.set_tokenizer(digest(&[&content]));
        }
        adapter.to_json().map_err(|source| Error::Adapter { model: self.model.name.clone(), source })
    }

    /// Writes something beside its place, and puts it there when it is whole; not at all where it is.
    fn write_once(&self, to: &Path, write: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
        if to.exists() {
            return Ok(());
        }
        let staged = self.work().join(".part");
        remove(&staged).map_err(at(&staged))?;
        write(&staged)?;
        fs::rename(&staged, to).map_err(at(to))
    }

    fn dump(
        &self,
        base: &Base,
        set: &LabelledSet,
        (to, what): (&Path, &str),
        report: &mut (dyn FnMut(Step<'_>) + Send),
    ) -> Result<(), Error> {
        let of = u64::try_from(set.len()).unwrap_or(u64::MAX);
        let dumped = Dumped {
            model: &self.model,
            adapter: (!base.name.is_empty()).then_some(&base.adapter),
            variant: self.parent,
            task: &self.task,
            set,
            batch: BATCH,
        };
        let mut told = |done| report(Step { what, done: u64::try_from(done).unwrap_or(u64::MAX), of });
        dumped.write(to, &mut told).map(drop)
    }
}

/// What TorchScript does not say of its inputs. Where items have lengths of their own, how long they are stays open.
fn inputs(folder: &Path) -> Result<Vec<Value>, Error> {
    let path = folder.join("dump.json");
    let text = fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let dump: Value =
        serde_json::from_slice(&text).map_err(|error| Error::Manifest { path, why: error.to_string() })?;
    let mut inputs = dump["inputs"].as_array().cloned().unwrap_or_default();
    if dump["lengths"].is_string() {
        for input in &mut inputs {
            input["shape"][0] = json!("t");
        }
    }
    Ok(inputs)
}

/// What earlier runs with other settings wrote is as large as what is needed now. That it cannot be removed hurts nobody.
fn clear_others(work: &Path, wanted: &[String]) {
    for entry in fs::read_dir(work).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name.starts_with(TENSORS) || name.starts_with(PARENT) || name == ".part";
        if ours && !wanted.contains(&name) {
            let _ = remove(&entry.path());
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
