//! Names of inputs as files below a folder: where an output goes, and which names cannot be one.

use std::collections::BTreeMap;
use std::path::{Component, Path};

/// What an output's file is called beyond its input's name.
pub(super) const ENDING: &str = ".json";
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
    let path = below(name)? + ENDING;
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
    }

    #[test]
    fn no_two_inputs_write_one_file() {
        assert!(check(["a", "b/a", "a.json"].into_iter()).is_ok());
        assert!(check(["a", "./a"].into_iter()).unwrap_err().contains("same output"));
        assert!(check(["a.json/b", "a"].into_iter()).unwrap_err().contains("needs a folder"));
        assert!(check(["a", "../b"].into_iter()).is_err());
    }
}
