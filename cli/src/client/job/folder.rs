//! The folder of outputs: whose it is, and files that are there whole or not at all.
//!
//! Of several commands only one writes to it at a time. So one name for what is being written is enough, and what a crash left of that is
//! written anew.

use super::names::BILL;
use crate::exit::usage;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Our own files in it begin so.
const OURS: &str = ".modelless-job";
const STATE: &str = ".modelless-job.json";
const LOCK: &str = ".modelless-job.lock";
const PART: &str = ".modelless-job.part";
/// What is written in it must be understood by who goes on.
const VERSION: u32 = 1;

/// Which job the outputs in a folder are of.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct State {
    version: u32,
    pub(super) server: String,
    pub(super) job: u64,
    /// When it was made: a server that was set up anew gives its number to another.
    pub(super) made_unix_us: u64,
    /// What it was made of; nothing where another command made it.
    pub(super) submitted: Option<Submitted>,
    /// Outputs are lines of one file.
    pub(super) lines: bool,
    /// Files that are there are of another job.
    pub(super) over: bool,
    /// There is nothing more to write.
    pub(super) complete: bool,
}

/// What the same command gives again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Submitted {
    pub(super) task: String,
    pub(super) goals: Value,
    pub(super) deadline_s: Option<u64>,
    /// Stands for all inputs.
    pub(super) inputs: String,
}

impl State {
    /// Of a job that a server told of.
    pub(super) fn of(server: &str, job: &Value, lines: bool) -> anyhow::Result<Self> {
        let number = |name: &str| {
            job[name].as_u64().with_context(|| format!("the server tells of a job without its {name:?}"))
        };
        Ok(Self {
            version: VERSION,
            server: server.to_owned(),
            job: number("job")?,
            made_unix_us: number("made_unix_us")?,
            submitted: None,
            lines,
            over: false,
            complete: false,
        })
    }
}

/// A folder of outputs, which nobody else writes to.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    pub(super) state: Option<State>,
    _lock: File,
}

impl Folder {
    /// Makes it where it is not there. One that has something in it must say of which job, or may be written `over`.
    pub(super) fn open(path: &Path, over: bool) -> anyhow::Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))?;
        let lock = path.join(LOCK);
        let cannot = || format!("cannot write to {}", path.display());
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(&lock).with_context(cannot)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => anyhow::bail!(
                "another command is writing to {} just now; wait for it, or name another folder",
                path.display()
            ),
            Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
        }
        let state = read(&path.join(STATE))?;
        if state.is_none() && !over && has_others(path)? {
            return Err(usage(format!(
                "{} has files in it that are of no job; name another --output, or write over them with --again",
                path.display()
            )));
        }
        Ok(Self { path: path.to_owned(), state, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes down which job it is.
    pub(super) fn keep(&mut self, state: State) -> anyhow::Result<()> {
        self.put(STATE, serde_json::to_string_pretty(&state)?.as_bytes(), true)?;
        self.state = Some(state);
        Ok(())
    }

    /// Writes a file. One that is there is whole: it stays, unless it is to be written `over` with something else. Whether it was written.
    pub(super) fn put(&self, name: &str, content: &[u8], over: bool) -> anyhow::Result<bool> {
        let path = self.path.join(name);
        let cannot = || format!("cannot write {}", path.display());
        if path.try_exists().with_context(cannot)? && (!over || is(&path, content)) {
            return Ok(false);
        }
        let folder = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder).with_context(cannot)?;
        let part = folder.join(PART);
        let mut file = fresh(&part).with_context(cannot)?;
        let written = file.write_all(content).and_then(|()| file.sync_all());
        written.and_then(|()| fs::rename(&part, &path)).with_context(cannot)?;
        Ok(true)
    }

    /// Begins a file of many lines, which is not there before it is done.
    pub(super) fn begin(&self, name: &str) -> anyhow::Result<File> {
        let part = self.path.join(format!("{PART}-{name}"));
        fresh(&part).with_context(|| format!("cannot write {}", part.display()))
    }

    /// Ends such a file. One that is there stays, unless it is to be written `over`.
    pub(super) fn end(&self, name: &str, file: &File, over: bool) -> anyhow::Result<()> {
        let (part, path) = (self.path.join(format!("{PART}-{name}")), self.path.join(name));
        let there = path.exists() && !over;
        let ended = if there {
            fs::remove_file(&part)
        } else {
            file.sync_all().and_then(|()| fs::rename(&part, &path))
        };
        ended.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Leaves out a file that was begun.
    pub(super) fn drop_begun(&self, name: &str) -> anyhow::Result<()> {
        remove(&self.path.join(format!("{PART}-{name}")))
    }

    /// Removes what another job left.
    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        remove(&self.path.join(name))
    }

    /// Has the disk know which files there are in a folder.
    pub(super) fn settle(&self, folder: &Path) -> anyhow::Result<()> {
        let folder = self.path.join(folder);
        let settled = File::open(&folder).and_then(|folder| folder.sync_all());
        settled.with_context(|| format!("cannot write to {}", folder.display()))
    }

    /// Writes what the job came to; with it, all is written.
    pub(super) fn complete(&mut self, job: &Value) -> anyhow::Result<()> {
        self.put(BILL, (serde_json::to_string_pretty(job)? + "\n").as_bytes(), true)?;
        if let Some(state) = self.state.clone() {
            self.keep(State { complete: true, ..state })?;
        }
        self.settle(Path::new(""))
    }

    /// What was written by [`Self::complete`].
    pub(super) fn bill(&self) -> anyhow::Result<Value> {
        let path = self.path.join(BILL);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))
    }
}

fn read(path: &Path) -> anyhow::Result<Option<State>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let state = serde_json::from_slice(&text).ok().filter(|state: &State| state.version == VERSION);
    let why = || {
        format!(
            "{} is not what this version of modelless writes; name another --output, or remove it",
            path.display()
        )
    };
    state.map(Some).with_context(why)
}

fn has_others(path: &Path) -> anyhow::Result<bool> {
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let ours = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(OURS.as_bytes());
    Ok(entries.filter_map(Result::ok).any(|entry| !ours(&entry.file_name())))
}

/// A new file, whatever was in its place.
fn fresh(path: &Path) -> std::io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => OpenOptions::new().write(true).create_new(true).open(path),
    }
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn is(path: &Path, content: &[u8]) -> bool {
    let same_length =
        || u64::try_from(content.len()).is_ok_and(|len| path.metadata().is_ok_and(|at| at.len() == len));
    same_length() && fs::read(path).is_ok_and(|there| there == content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use modelless_testkit::temp_dir;
    use serde_json::json;

    fn job() -> Value {
        json!({"job": 7, "made_unix_us": 5})
    }

    #[test]
    fn a_folder_knows_its_job_and_is_written_to_by_one_at_a_time() {
        let temp = temp_dir("folder").unwrap();
        let path = temp.path().join("a/b");
        let mut folder = Folder::open(&path, false).unwrap();
        assert_eq!(folder.state, None);
        assert!(Folder::open(&path, true).unwrap_err().to_string().contains("another command"));
        folder.keep(State::of("http://a", &job(), false).unwrap()).unwrap();
        folder.complete(&json!({"job": 7})).unwrap();
        drop(folder);
        let folder = Folder::open(&path, false).unwrap();
        let state = folder.state.clone().unwrap();
        assert_eq!((state.job, state.made_unix_us, state.complete), (7, 5, true));
        assert_eq!(folder.bill().unwrap(), json!({"job": 7}));
        drop(folder);
        fs::write(path.join(STATE), "{\"version\": 2}").unwrap();
        assert!(Folder::open(&path, false).unwrap_err().to_string().contains("another --output"));
    }

    #[test]
    fn files_of_others_are_not_written_over_unless_that_is_asked_for() {
        let temp = temp_dir("folder").unwrap();
        fs::write(temp.path().join("letter"), "dear").unwrap();
        assert!(Folder::open(temp.path(), false).unwrap_err().is::<Usage>());
        assert!(Folder::open(temp.path(), true).is_ok());
    }

    #[test]
    fn a_file_that_is_there_stays_and_what_a_crash_left_is_written_anew() {
        let temp = temp_dir("folder").unwrap();
        let folder = Folder::open(temp.path(), false).unwrap();
        let at = |name: &str| fs::read_to_string(temp.path().join(name)).unwrap();
        fs::create_dir(temp.path().join("d")).unwrap();
        fs::write(temp.path().join("d").join(PART), "half of ano").unwrap();
        assert!(folder.put("d/a.json", b"1", false).unwrap());
        assert!(!folder.put("d/a.json", b"2", false).unwrap());
        assert_eq!(at("d/a.json"), "1");
        assert!(!folder.put("d/a.json", b"1", true).unwrap(), "the same again is not written");
        assert!(folder.put("d/a.json", b"2", true).unwrap());
        assert_eq!(at("d/a.json"), "2");
        assert_eq!(fs::read_dir(temp.path().join("d")).unwrap().count(), 1, "nothing is left beside it");
        fs::write(temp.path().join(format!("{PART}-x.jsonl")), "half").unwrap();
        let mut file = folder.begin("x.jsonl").unwrap();
        file.write_all(b"{}\n").unwrap();
        assert!(!temp.path().join("x.jsonl").exists());
        folder.end("x.jsonl", &file, false).unwrap();
        assert_eq!(at("x.jsonl"), "{}\n");
        let file = folder.begin("x.jsonl").unwrap();
        folder.end("x.jsonl", &file, false).unwrap();
        assert_eq!(at("x.jsonl"), "{}\n", "and stays");
    }
}
