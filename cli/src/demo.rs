//! What `up --demo` registers. It is inside the program, so that a copy of the program is enough.

use anyhow::Context;
use modelless_profiler::Package;
use std::fs;
use std::path::{Path, PathBuf};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../examples/", $name)))),*]
    };
}

const FILES: &[(&str, &[u8])] = files![
    "fashion/task.toml",
    "fashion/ATTRIBUTION.md",
    "fashion/measured-10000.json",
    "fashion/pictures/bag.png",
    "fashion/pictures/boot.png",
    "fashion/pictures/shirt.png",
    "fashion/sample/sample-2000-images-idx3-ubyte.gz",
    "fashion/sample/sample-2000-labels-idx1-ubyte.gz",
    "fashion/models/linear.toml",
    "fashion/models/linear.onnx",
    "fashion/models/linear.int8.onnx",
    "fashion/models/mlp_s.toml",
    "fashion/models/mlp_s.onnx",
    "fashion/models/mlp_s.int8.onnx",
    "fashion/models/mlp_l.toml",
    "fashion/models/mlp_l.onnx",
    "fashion/models/mlp_l.int8.onnx",
    "fashion/models/cnn_s.toml",
    "fashion/models/cnn_s.onnx",
    "fashion/models/cnn_s.int8.onnx",
    "fashion/models/cnn_m.toml",
    "fashion/models/cnn_m.onnx",
    "fashion/models/cnn_m.int8.onnx",
    "fashion/models/cnn_l.toml",
    "fashion/models/cnn_l.onnx",
    "fashion/models/cnn_l.int8.onnx",
    "fashion-tensor/task.toml",
    "fashion-tensor/models/cnn_m.toml",
];

/// The tasks of the demo.
const TASKS: [&str; 2] = ["fashion", "fashion-tensor"];

/// Writes the demo's files into a folder, as far as they are not there, and reads its packages.
pub(crate) fn unpack(folder: &Path) -> anyhow::Result<Vec<Package>> {
    for (name, content) in FILES {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|there| there == *content) {
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    TASKS.iter().map(|task| Ok(Package::read(&folder.join(task))?)).collect()
}

/// A picture to try it with.
pub(crate) fn picture(folder: &Path) -> PathBuf {
    folder.join("fashion/pictures/shirt.png")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_carries_the_whole_demo() {
        let folder = modelless_testkit::temp_dir("demo").unwrap();
        let packages = unpack(folder.path()).unwrap();
        let files = packages.iter().flat_map(|package| &package.models).flat_map(|model| &model.variants);
        let files: Vec<_> = files.map(|variant| variant.file.clone()).collect();
        assert_eq!(files.len(), 13);
        assert!(files.iter().all(|file| file.is_file()));
        assert!(packages.iter().all(|package| package.task.labelled_set.as_ref().unwrap().path.is_file()));
        assert!(picture(folder.path()).is_file());
    }

    #[test]
    fn a_damaged_file_is_written_again() {
        let folder = modelless_testkit::temp_dir("demo").unwrap();
        unpack(folder.path()).unwrap();
        let damaged = folder.path().join("fashion/task.toml");
        fs::write(&damaged, "name = ").unwrap();
        unpack(folder.path()).unwrap();
        assert!(fs::read_to_string(&damaged).unwrap().contains("image-classification"));
    }
}
