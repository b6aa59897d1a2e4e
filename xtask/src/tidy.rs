//! `cargo xtask tidy`: the rules that no compiler checks. Each is a function of plain values, so each is tested.

mod clients;
mod documents;
mod graph;
mod locks;
mod manifests;
mod sources;
mod walls;

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::command::{metadata, output, program};
use crate::{measure, root, say};

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Where, as `file` or `file:line`.
    pub(crate) place: String,
    pub(crate) rule: &'static str,
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) mend: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}]\n    {}", self.place, self.what, self.rule, self.mend)
    }
}

/// A text file of the checkout.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// What stands after the last dot; empty for `README` and `.gitignore`.
    pub(crate) fn ending(&self) -> &str {
        Path::new(&self.path).extension().and_then(|ending| ending.to_str()).unwrap_or_default()
    }
}

pub(crate) fn run() -> Result<()> {
    let root = root()?;
    let graph = graph::read(&metadata(&root)?)?;
    let files = read_files(&root)?;
    let measures: Vec<&str> = measure::names();

    let mut findings = walls::check(&graph);
    findings.extend(manifests::check(&graph, &files));
    findings.extend(sources::check(&files));
    findings.extend(documents::check(&files, &measures));
    findings.extend(clients::check(&files));
    findings.extend(locks::check(&files));

    for (path, lines) in sources::long(&files) {
        say(format!(
            "note: {path} has {lines} lines of production code; {} are the limit",
            sources::MAX_LINES
        ));
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    ensure!(findings.is_empty(), "{} broken rule(s)", findings.len());
    say(format!("{} crates and {} files are tidy", graph.members.len(), files.len()));
    Ok(())
}

/// Everything git has or would take; what is no text is left out.
fn read_files(root: &Path) -> Result<Vec<File>> {
    let listed =
        output(program(root, "git").args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]))
            .context("tidy looks at what git would commit")?;
    let mut paths: Vec<&str> = listed.split('\0').filter(|path| !path.is_empty()).collect();
    paths.sort_unstable();
    paths.dedup();
    // A deleted file that is still in the index cannot be read, and a binary one is no text.
    Ok(paths
        .into_iter()
        .filter_map(|path| {
            Some(File { path: path.to_owned(), text: fs::read_to_string(root.join(path)).ok()? })
        })
        .collect())
}
