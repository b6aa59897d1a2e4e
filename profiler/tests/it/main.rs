//! Measuring and registering, with an engine of our own making and with the real one.
#![allow(clippy::unwrap_used, reason = "helpers of tests; a failed one is a failed test")]

mod again;
mod fake;
mod minutes;
mod real;

use modelless_profiler::{Package, Profiler, Registrar};
use modelless_store::{Artefacts, MemStore};
use modelless_testkit::TempDir;
use modelless_types::TenantId;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// A registrar over an empty store in memory, and the folder of its artefacts.
fn registrar(profiler: Profiler) -> (Registrar, TempDir) {
    let folder = modelless_testkit::temp_dir("profiler").unwrap();
    let artefacts = Artefacts::new(folder.path().join("artefacts")).unwrap();
    let store = Arc::new(MemStore::default());
    (Registrar { store, artefacts, profiler, tenant: TenantId::DEFAULT }, folder)
}

/// An IDX pair `images` and `labels` of four grey 1x1 pictures.
fn write_set(folder: &Path, pixels: [u8; 4], labels: [u8; 4]) {
    let header = |extents: &[u32]| {
        let axes = u8::try_from(extents.len()).unwrap();
        let extents: Vec<u8> = extents.iter().flat_map(|extent| extent.to_be_bytes()).collect();
        [vec![0, 0, 8, axes], extents].concat()
    };
    fs::write(folder.join("s-images-idx3-ubyte"), [header(&[4, 1, 1]), pixels.to_vec()].concat()).unwrap();
    fs::write(folder.join("s-labels-idx1-ubyte"), [header(&[4]), labels.to_vec()].concat()).unwrap();
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn example(name: &str) -> Package {
    Package::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)).unwrap()
}
