//! A labelled set as the adapter prepared it, in files that numpy reads: for whoever computes on the very tensors that a
//! model is given, be it to make variants of it or to check a figure without any code of ours.
//!
//! A folder: `dump.json`, `labels.npy` (positions in the task's labels), one `.npy` file for each input of the model with an
//! item in each row, and `lengths.npy` where items have lengths of their own. Such items are as long as the longest of the
//! dump, the rest zeros; a batch is measured as long as its own longest.

use crate::error::Error;
use crate::inspect::{expected, items, read};
use crate::manifest::ModelManifest;
use crate::set::LabelledSet;
use modelless_adapter::{Adapter, AdapterSpec, Body, Decoded, Limits, Scratch};
use modelless_types::{DType, Engine, Task, TensorSpec};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A dump says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dump {
    /// The task's name.
    pub task: String,
    /// The model's name.
    pub model: String,
    /// The set's name.
    pub set: String,
    /// How many items.
    pub items: usize,
    /// Items of a batch while accuracy is measured, in their order: what rounds by batch gives the same only so.
    pub batch: u32,
    /// The model's inputs.
    pub inputs: Vec<DumpedTensor>,
    /// The file of the labels.
    pub labels: String,
    /// The file of the lengths, where items have lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<String>,
}

/// An input of the model in a dump.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DumpedTensor {
    /// The name the model gives it.
    pub name: String,
    /// Its file.
    pub file: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Extents of one item.
    pub shape: Vec<u32>,
}

/// What is to be dumped.
#[derive(Clone, Copy, Debug)]
pub struct Dumped<'a> {
    /// Whose inputs.
    pub model: &'a ModelManifest,
    /// Another adapter than the model's own: for a smaller input.
    pub adapter: Option<&'a AdapterSpec>,
    /// Which of its variants says what the tensors are.
    pub variant: usize,
    /// What it is for.
    pub task: &'a Task,
    /// Where the inputs come from.
    pub set: &'a LabelledSet,
    /// Items of a batch while accuracy is measured.
    pub batch: u32,
}

impl Dumped<'_> {
    /// Writes a folder. `progress` is told how many items are done.
    pub fn write(self, folder: &Path, progress: &mut dyn FnMut(usize)) -> Result<Dump, Error> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        let adapter = self.bind()?;
        let (inputs, adapter) = adapter;
        // Once only for their lengths, and none of them is kept: a set may be larger than memory.
        let mut lengths = Vec::new();
        for item in 0..self.set.len() {
            match adapter.length(&self.decode(&adapter, item)?) {
                Some(length) => lengths.push(i64::from(length)),
                None => break,
            }
        }
        let longest = lengths.iter().max().and_then(|longest| u32::try_from(*longest).ok());
        let mut tensors = Vec::new();
        for (number, input) in inputs.iter().enumerate() {
            let mut shape = input.shape.clone();
            if let (Some(longest), Some(first)) = (longest, shape.first_mut()) {
                *first = longest;
            }
            let spec = TensorSpec { shape: shape.clone(), ..input.clone() };
            let bytes = spec.item_bytes().ok_or_else(|| Error::Dump {
                model: self.model.name.clone(),
                why: format!("its input `{}` has strings, which numpy has no fixed room for", input.name),
            })?;
            let file = format!("input-{number}.npy");
            let array = Array::create(&folder.join(&file), input.dtype, self.set.len(), &shape)?;
            tensors.push((array, vec![0; bytes]));
        }
        let mut scratch = Scratch::default();
        for item in 0..self.set.len() {
            let decoded = self.decode(&adapter, item)?;
            for (number, (array, row)) in tensors.iter_mut().enumerate() {
                row.fill(0);
                adapter.prepare(&decoded, number, row, &mut scratch).map_err(|source| Error::Prepare {
                    variant: self.model.variants[self.variant].name.clone(),
                    source,
                })?;
                array.push(row)?;
            }
            progress(item + 1);
        }
        let mut told = Vec::new();
        for (number, ((array, _), input)) in tensors.into_iter().zip(inputs).enumerate() {
            array.finish()?;
            let mut shape = input.shape;
            if let (Some(longest), Some(first)) = (longest, shape.first_mut()) {
                *first = longest;
            }
            let file = format!("input-{number}.npy");
            told.push(DumpedTensor { name: input.name, file, dtype: input.dtype, shape });
        }
        let labels = (0..self.set.len()).map(|item| i64::try_from(self.set.class(item)).unwrap_or(i64::MAX));
        integers(&folder.join("labels.npy"), labels.collect())?;
        let lengths = (!lengths.is_empty()).then_some(lengths);
        let dump = Dump {
            task: self.task.name.clone(),
            model: self.model.name.clone(),
            set: self.set.name().to_owned(),
            items: self.set.len(),
            batch: self.batch,
            inputs: told,
            labels: "labels.npy".to_owned(),
            lengths: lengths.as_ref().map(|_| "lengths.npy".to_owned()),
        };
        if let Some(lengths) = lengths {
            integers(&folder.join("lengths.npy"), lengths)?;
        }
        // Last of all, so that a folder with it is whole.
        let path = folder.join("dump.json");
        let text = serde_json::to_string_pretty(&dump).expect("it is plain data; this is a bug") + "\n";
        fs::write(&path, text).map_err(at(&path))?;
        Ok(dump)
    }

    fn bind(&self) -> Result<(Vec<TensorSpec>, Adapter), Error> {
        let spec = self.adapter.unwrap_or(&self.model.adapter);
        let variant = &self.model.variants[self.variant];
        let fault =
            |why: String| self.model.fault_of(self.variant, format!("{}: {why}", variant.file.display()));
        let (mut inputs, outputs) = match variant.engine {
            Engine::Torch => expected(spec, self.task),
            Engine::Onnx | Engine::Openvino | Engine::Remote => {
                let file = read(&variant.file).map_err(fault)?;
                items(&file, spec, self.task).map_err(fault)?
            }
        };
        if self.adapter.is_some() {
            for expected in spec.tensors(self.task).0 {
                let same = inputs.len() == 1;
                if let Some(input) = inputs.iter_mut().find(|input| same || input.name == expected.name) {
                    input.shape = expected.shape;
                }
            }
        }
        let unfit = |source| Error::Adapter { model: self.model.name.clone(), source };
        let preparation = spec.preparation(self.task, self.model.tokenizer()?.as_ref()).map_err(unfit)?;
        let adapter = Adapter::prepared(spec, self.task, preparation, &inputs, &outputs).map_err(unfit)?;
        Ok((inputs, adapter))
    }

    fn decode(&self, adapter: &Adapter, item: usize) -> Result<Decoded, Error> {
        let raw = self.set.input(item)?;
        let decoded = adapter.preparation().decode(Body::Raw(&raw), &Limits::default());
        decoded.map_err(|source| Error::Item { item, set: self.set.name().to_owned(), source })
    }
}

/// An array that is written a row at a time. Removed again unless it was finished.
struct Array {
    file: Option<BufWriter<File>>,
    path: PathBuf,
}

impl Array {
    fn create(path: &Path, dtype: DType, rows: usize, shape: &[u32]) -> Result<Self, Error> {
        let file = File::create(path).map_err(at(path))?;
        let mut array = Self { file: Some(BufWriter::new(file)), path: path.to_owned() };
        array.push(&header(dtype, rows, shape))?;
        Ok(array)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let file = self.file.as_mut().expect("it was not finished; this is a bug");
        file.write_all(bytes).map_err(at(&self.path))
    }

    fn finish(mut self) -> Result<(), Error> {
        let mut file = self.file.take().expect("it is finished once; this is a bug");
        file.flush().map_err(at(&self.path))
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Numpy's format, version 1.0: what the bytes that follow are, padded so that they begin at a multiple of 64.
fn header(dtype: DType, rows: usize, shape: &[u32]) -> Vec<u8> {
    /// Bytes of what every such file begins with.
    const BEFORE: usize = 10;
    let descr = match dtype {
        DType::Bool => "|b1",
        DType::Uint8 | DType::Bytes => "|u1",
        DType::Int8 => "|i1",
        DType::Int32 => "<i4",
        DType::Int64 => "<i8",
        DType::Fp16 => "<f2",
        DType::Fp32 => "<f4",
        DType::Fp64 => "<f8",
    };
    let axes: Vec<String> = shape.iter().map(|axis| format!(" {axis},")).collect();
    let axes = axes.concat();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows},{axes}), }}");
    let whole = (BEFORE + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', whole - BEFORE - text.len() - 1));
    text.push('\n');
    let length = u16::try_from(text.len()).expect("a shape has few axes; this is a bug").to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &length, text.as_bytes()].concat()
}

fn integers(path: &Path, values: Vec<i64>) -> Result<(), Error> {
    let mut array = Array::create(path, DType::Int64, values.len(), &[])?;
    for value in values {
        array.push(&value.to_le_bytes())?;
    }
    array.finish()
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Write { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_what_numpy_writes() {
        let bytes = header(DType::Fp32, 2_000, &[1, 28, 28]);
        assert_eq!(bytes.len() % 64, 0);
        assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
        assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), bytes.len() - 10);
        let text = String::from_utf8_lossy(&bytes[10..]).into_owned();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2000, 1, 28, 28,), }"));
        assert!(text.ends_with('\n'));
        let one = header(DType::Int64, 3, &[]);
        assert!(String::from_utf8_lossy(&one).contains("'shape': (3,), }"));
    }
}
