//! For tests: the files of a machine, below a folder.

use std::fs;
use std::path::Path;

pub(super) fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
    fs::write(path, text).expect("a file");
}
