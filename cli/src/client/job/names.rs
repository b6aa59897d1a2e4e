//! Names of inputs as files below a folder: where an output goes, and which names cannot be one.

use std::collections::BTreeMap;
use std::path::{Component, Path};

/// What an output's file is called beyond its input's name.
pub(super) const ENDING: &str = ".json";
/// Letters of an input's name, as the server counts them.
const NAME_MAX: usize = 250;
/// Bytes of the name of a file or folder: a few less than file systems take, for what is written beside it first.
const FILE_MAX: usize = 240;
/// What a finished job came to.
pub(super) const BILL: &str = "job.json";

/// A name as a path below a folder, written in one way only. Whatever leaves the folder is refused.
pub(super) fn below(name: &str) -> Result<String, String> {
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_string_lossy()),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(format!("the output of {name:?} would lie outside of the folder of outputs"));
            }
        }
    }
    if parts.is_empty() || name.ends_with('/') || name.contains('\0') {
        return Err(format!("{name:?} is no name of a file"));
    }
    Ok(parts.join("/"))
}

/// The file of an input's output, below the folder of outputs.
pub(super) fn output(name: &str) -> Result<String, String> {
    let letters = name.chars().count();
    if letters > NAME_MAX {
        return Err(format!("{name:?} has {letters} letters; an input's name has {NAME_MAX} at most"));
    }
    let path = below(name)? + ENDING;
    if let Some(long) = path.split('/').find(|part| part.len() > FILE_MAX) {
        return Err(format!(
            "the output of {name:?} would be a file or folder with a name of {} bytes; {FILE_MAX} is the most that can be written",
            long.len()
        ));
    }
    if path == BILL || path.starts_with(".modelless-job") {
        return Err(format!("the output of {name:?} would be {path}, which tells of the job itself"));
    }
    Ok(path)
}

/// Refuses names of which two would write the same file, or one a file where another needs a folder. Names are told by their places.
pub(super) fn check<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut files: BTreeMap<String, &str> = BTreeMap::new();
    for name in names {
        if let Some(before) = files.insert(output(name)?, name) {
            return Err(format!(
                "{before:?} and {name:?} would have the same output; each input needs a name of its own"
            ));
        }
    }
    for (path, name) in &files {
        let mut folders = path.match_indices('/').map(|(at, _)| &path[..at]);
        if let Some(taken) = folders.find_map(|folder| files.get(folder)) {
            return Err(format!(
                "the output of {taken:?} would be a file where that of {name:?} needs a folder"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_lie_below_their_folder_or_nowhere() {
        assert_eq!(output("a/b.png").unwrap(), "a/b.png.json");
        assert_eq!(output("./a//b.png").unwrap(), "a/b.png.json");
        assert_eq!(output("..a/b..").unwrap(), "..a/b...json");
        for wrong in
            ["../a", "a/../../b", "a/..", "..", "/etc/passwd", "", ".", "./", "a/", "a\0b", "job", "./job"]
        {
            assert!(output(wrong).is_err(), "{wrong:?}");
        }
        assert!(output(".modelless-job").is_err() && output("a/job").is_ok());
        let long = |letters: usize| "ä/".repeat((letters - 1) / 2) + "ä";
        assert!(output(&long(249)).is_ok());
        assert!(output(&long(251)).unwrap_err().contains("250 at most"));
        assert!(output(&"ä".repeat(117)).is_ok());
        assert!(output(&"ä".repeat(118)).unwrap_err().contains("241 bytes"));
    }

    #[test]
    fn no_two_inputs_write_one_file() {
        assert!(check(["a", "b/a", "a.json"].into_iter()).is_ok());
        assert!(check(["a", "./a"].into_iter()).unwrap_err().contains("same output"));
        assert!(check(["a.json/b", "a"].into_iter()).unwrap_err().contains("needs a folder"));
        assert!(check(["a", "../b"].into_iter()).is_err());
    }
}
