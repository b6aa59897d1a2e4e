//! All files of a folder, in the order of their paths.

use anyhow::Context;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What was left out of a folder, and how much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LeftOut {
    hidden: usize,
    links: usize,
    others: usize,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.hidden, "hidden"),
            (self.links, "links that lead to no file of the folder"),
            (self.others, "neither files nor folders"),
        ];
        let told: Vec<String> = all
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        f.write_str(&told.join(", "))
    }
}

/// Paths below the folder, with `/` between their parts. What is hidden is left out, and so are links to what is not a file in the folder,
/// and the folder `but`, where outputs go.
pub(super) fn files(root: &Path, but: Option<&Path>, most: usize) -> anyhow::Result<(Vec<String>, LeftOut)> {
    let cannot = |path: &Path| format!("cannot read {}", path.display());
    let real = root.canonicalize().with_context(|| cannot(root))?;
    let (mut files, mut out) = (Vec::new(), LeftOut::default());
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let here = real.join(&folder);
        for entry in fs::read_dir(&here).with_context(|| cannot(&here))? {
            let entry = entry.with_context(|| cannot(&here))?;
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                anyhow::bail!(
                    "the name of {} is not UTF-8, as names of inputs are; rename it",
                    path.display()
                );
            };
            let kind = entry.file_type().with_context(|| cannot(&path))?;
            if name.starts_with('.') {
                out.hidden += 1;
            } else if kind.is_dir() {
                if but != Some(path.as_path()) {
                    folders.push(folder.join(name));
                }
            } else if kind.is_file() || (kind.is_symlink() && leads_to_file(&path, &real)) {
                let path = folder.join(name);
                files.push(path.to_str().map(str::to_owned).unwrap_or_default());
                anyhow::ensure!(files.len() <= most, "{} has more than {most} files", root.display());
            } else if kind.is_symlink() {
                out.links += 1;
            } else {
                out.others += 1;
            }
        }
    }
    files.sort_unstable();
    Ok((files, out))
}

fn leads_to_file(link: &Path, root: &Path) -> bool {
    link.canonicalize().is_ok_and(|real| real.starts_with(root) && real.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_testkit::temp_dir;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn files_are_found_in_order_and_what_is_left_out_is_counted() {
        let (root, other) = (temp_dir("walk").unwrap(), temp_dir("walk").unwrap());
        let at = |name: &str| root.path().join(name);
        for folder in ["b/c", ".git", "out"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["b.png", "b/z", "b/c/y", "a", ".hidden", ".git/x", "out/a.json"] {
            fs::write(at(file), "x").unwrap();
        }
        fs::write(other.path().join("secret"), "x").unwrap();
        symlink(other.path().join("secret"), at("leads-out")).unwrap();
        symlink(other.path(), at("folder-out")).unwrap();
        symlink(root.path(), at("b/round")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        symlink("a", at("inside")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let but = at("out").canonicalize().unwrap();
        let (found, left_out) = files(root.path(), Some(&but), 10).unwrap();
        assert_eq!(found, ["a", "b.png", "b/c/y", "b/z", "inside"]);
        assert_eq!(left_out, LeftOut { hidden: 2, links: 4, others: 1 });
        assert!(left_out.to_string().starts_with("2 hidden, 4 links"), "{left_out}");
        assert!(files(root.path(), None, 5).unwrap_err().to_string().contains("more than 5"));
    }
}
