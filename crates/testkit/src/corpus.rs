//! Feeding a fuzz target with what the fuzzer has kept, without a fuzzer: how CI sees in seconds that what was found once stays
//! mended. The fuzzer itself runs with `cargo xtask fuzz`.

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Beside the corpus: inputs that people wrote, each a real request or one that once broke something.
const FOLDERS: [&str; 2] = ["corpus", "seeds"];

/// Gives each file that was kept for a target to its body. Panics, naming the file, if the body does; and if there is none, since
/// then nothing was tested.
pub fn replay(target: &str, body: impl Fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut files: Vec<PathBuf> =
        FOLDERS.iter().flat_map(|folder| files(&fuzz.join(folder).join(target))).collect();
    files.sort();
    assert!(
        !files.is_empty(),
        "nothing is kept for the fuzz target {target}: `cargo xtask fuzz {target}` keeps it"
    );
    for file in &files {
        let data = fs::read(file).unwrap_or_else(|error| panic!("reading {}: {error}", file.display()));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(&data))) {
            let file = file.file_name().unwrap_or_default().to_string_lossy();
            panic!("the fuzz target {target} fails on {file} of {} bytes: {}", data.len(), words(&*panic));
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect()
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
