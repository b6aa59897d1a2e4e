//! What generating needs: a Python program, which is inside of this one, and the libraries that it computes with, which pip
//! brings when they are needed first.
//!
//! pip runs as the user, so that the user's own index, proxy and certificates apply. Everything lies in a folder named after
//! what is in it and appears there in one rename: what is there is complete.

use crate::error::Error;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval};

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../generator/modelless_generator/", $name)))),*]
    };
}

/// The program.
const SOURCES: &[(&str, &[u8])] = sources![
    "__init__.py",
    "__main__.py",
    "archive.py",
    "calibrate.py",
    "check.py",
    "data.py",
    "errors.py",
    "factor.py",
    "from_script.py",
    "model.py",
    "operators.py",
    "quantise.py",
    "recipes.py",
    "rewrite.py",
    "store.py",
    "to_script.py",
];
const REQUIREMENTS: &str = include_str!("../../generator/requirements.txt");

/// About how much its libraries are on the disk.
const BYTES: u64 = 190 << 20;

/// How often progress is looked at while pip works.
const LOOK: Duration = Duration::from_millis(200);

/// How much of what failed is shown.
const SHOWN: usize = 2_000;

/// What says which Python it is: its program, the folders that it reads, its version.
const ASK: &str =
    "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, sys.version]))";

/// What generating needs, installed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tools {
    /// The interpreter.
    pub python: PathBuf,
    /// What belongs to the interpreter.
    pub prefixes: Vec<PathBuf>,
    /// Its libraries.
    pub libraries: PathBuf,
    /// The program's folder.
    pub program: PathBuf,
}

impl Tools {
    /// Finds them below a folder, or installs them there. `report` is told how many bytes of how many are there; not at all where
    /// nothing has to be fetched.
    pub async fn ensure(folder: &Path, report: &mut (dyn FnMut(u64, u64) + Send)) -> Result<Self, Error> {
        let asked = Command::new("python3").args(["-c", ASK]).stdin(Stdio::null()).output().await;
        let asked = asked.map_err(|error| missing(&error.to_string()))?;
        if !asked.status.success() {
            return Err(missing(String::from_utf8_lossy(&asked.stderr).trim()));
        }
        let (python, prefix, base, version): (PathBuf, PathBuf, PathBuf, String) =
            serde_json::from_slice(&asked.stdout).map_err(|error| missing(&error.to_string()))?;
        let libraries =
            folder.join(format!("libraries-{}", digest(&[REQUIREMENTS.as_bytes(), version.as_bytes()])));
        let program = folder
            .join(format!("program-{}", digest(&SOURCES.iter().map(|(_, text)| *text).collect::<Vec<_>>())));
        fs::create_dir_all(folder).map_err(at(folder))?;
        // Whoever comes second waits, and finds it done.
        let lock = File::create(folder.join(".lock")).map_err(at(folder))?;
        let lock = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock)).await;
        let _held = lock.map_err(|error| Error::Cancelled(error.to_string()))?.map_err(at(folder))?;
        if !program.is_dir() {
            place(folder, &program)?;
        }
        if !libraries.is_dir() {
            fetch(folder, &python, &libraries, report).await?;
        }
        Ok(Self { python, prefixes: vec![prefix, base], libraries, program })
    }
}

fn place(folder: &Path, program: &Path) -> Result<(), Error> {
    let staging = folder.join(".program");
    clear(&staging)?;
    let package = staging.join("modelless_generator");
    fs::create_dir_all(&package).map_err(at(&package))?;
    for (name, text) in SOURCES {
        let path = package.join(name);
        fs::write(&path, text).map_err(at(&path))?;
    }
    fs::rename(&staging, program).map_err(at(program))
}

async fn fetch(
    folder: &Path,
    python: &Path,
    libraries: &Path,
    report: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<(), Error> {
    let staging = folder.join(".libraries");
    clear(&staging)?;
    let (into, list, log) = (staging.join("in"), staging.join("requirements.txt"), staging.join("pip.log"));
    fs::create_dir_all(&into).map_err(at(&into))?;
    fs::write(&list, REQUIREMENTS).map_err(at(&list))?;
    let said = File::create(&log).map_err(at(&log))?;
    let mut command = Command::new(python);
    command.args([
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "--retries",
        "2",
        "--timeout",
        "20",
    ]);
    command.args(["--quiet", "install", "--only-binary=:all:", "--no-compile", "--target"]).arg(&into);
    command.arg("-r").arg(&list).env("TMPDIR", &staging).env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| missing(&error.to_string()))?;
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.map_err(at(python))?,
            // What is fetched lies there twice for a while, packed and unpacked.
            _ = look.tick() => report(size_of_tree(&staging).min(BYTES), BYTES),
        }
    };
    let result = fetched(status, &log).and_then(|()| fs::rename(&into, libraries).map_err(at(libraries)));
    clear(&staging)?;
    result
}

fn fetched(status: ExitStatus, log: &Path) -> Result<(), Error> {
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    if said.contains("No module named pip") {
        return Err(missing("No module named pip"));
    }
    let start = said.ceil_char_boundary(said.len().saturating_sub(SHOWN));
    let needed = REQUIREMENTS.split_whitespace().collect::<Vec<_>>().join(", ");
    Err(Error::Tools(format!(
        "pip could not fetch what generating variants needs ({needed}); it takes an index of packages that pip is set up \
         for. pip said: {}",
        said[start..].trim()
    )))
}

fn missing(why: &str) -> Error {
    Error::Tools(format!(
        "`python3` with pip is needed to generate variants and does not run ({why}); install it (Debian: apt install \
         python3-pip). Serving needs neither"
    ))
}

fn digest(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part);
    }
    super::hex(&hasher.finalize())[..12].to_owned()
}

fn clear(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(folder)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Write { path, source }
}

/// Bytes of all files below a folder; what vanishes meanwhile counts as nothing.
pub fn size_of_tree(path: &Path) -> u64 {
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

    #[test]
    fn the_whole_program_is_inside_of_this_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("generator/modelless_generator");
        let mut there: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.strip_suffix(".py").is_some())
            .collect();
        there.sort();
        assert_eq!(there, SOURCES.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>());
    }

    #[test]
    fn the_program_appears_whole_and_again_where_it_is_another() {
        let folder = modelless_testkit::temp_dir("tools").unwrap();
        let program = folder.path().join("program-x");
        place(folder.path(), &program).unwrap();
        assert!(program.join("modelless_generator/__main__.py").is_file());
        assert!(!folder.path().join(".program").exists());
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
    }
}
