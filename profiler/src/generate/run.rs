//! The program in its box: started, listened to, and not believed.

use super::listen::{Failed, Step, Wanted, listen};
use super::{Request, Tools, convert, digest};
use crate::error::Error;
use modelless_engine::{Boxed, Sandbox};
use modelless_types::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// How much of what it said at last is shown.
const SHOWN: usize = 2_000;
/// How much longer than the time of its processor it may take: this machine may be busy with what is served.
const PATIENCE: u64 = 4;
/// An artefact may be so much larger than its parent.
const LARGER: u64 = 3;
const SMALLEST_LIMIT: u64 = 64 << 20;

/// Read by Python and its libraries wherever they are.
const SYSTEM: [&str; 8] = [
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/dev/null",
    "/dev/urandom",
    "/sys/devices/system/cpu",
    "/proc/cpuinfo",
];

/// What became of a recipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// There is an artefact.
    Made,
    /// It does not suit the model, or what came of it was not good enough.
    Refused,
    /// It should have worked.
    Failed,
    /// What makes it or compares it is not installed here.
    Unavailable,
}

/// A recipe and what became of it, as the program tells it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// Which of the models it was made of: empty for the parent.
    pub base: String,
    /// The recipe.
    pub recipe: String,
    /// Both together.
    pub name: String,
    /// Numbers it computes in.
    pub precision: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Why there is no artefact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The artefact, in the folder of what was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Numbers that it has learnt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// Compared with its parent on real inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Value>,
    /// What there is to say of how it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<Value>,
    /// How long it took, when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// It was there already.
    #[serde(default)]
    pub reused: bool,
}

impl Piece {
    /// There is none after all.
    pub(super) fn refuse(&mut self, why: String) {
        (self.outcome, self.why, self.file, self.check) = (Outcome::Refused, Some(why), None, None);
    }

    /// Of a recipe that was not even tried.
    pub(super) fn unavailable(recipe: &str, precision: &str, why: String) -> Self {
        Self {
            base: String::new(),
            recipe: recipe.to_owned(),
            name: recipe.to_owned(),
            precision: precision.to_owned(),
            outcome: Outcome::Unavailable,
            why: Some(why),
            file: None,
            sha256: None,
            bytes: None,
            parameters: None,
            check: None,
            how: None,
            seconds: None,
            reused: false,
        }
    }
}

/// Runs the program on a job that is written. What it made was checked against what it says of it.
pub(super) async fn in_box(
    request: &Request,
    tools: &Tools,
    (work, wanted): (&Path, BTreeSet<(String, String)>),
    report: &mut (dyn FnMut(Step<'_>) + Send),
) -> Result<Vec<Piece>, Error> {
    let failed = |name: &str, why: String| request.failed(name, why);
    // The kernel knows folders, not names: what is not there yet cannot be named.
    let work = fs::canonicalize(work).map_err(|source| Error::Read { path: work.to_owned(), source })?;
    let log = work.join("log");
    let errors = File::create(&log).map_err(super::at(&log))?;
    let mut command = command(request, tools, &work)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).kill_on_drop(true);
    let mut child =
        command.spawn().map_err(|error| failed("no-box", format!("the box cannot be started: {error}")))?;
    let out = child.stdout.take().expect("it was asked for; this is a bug");
    let wanted = Wanted { pieces: wanted, unboxed: request.limits.unboxed };
    let run = async {
        let heard = listen(out, wanted, report).await.map_err(|Failed { name, text }| failed(&name, text))?;
        Ok::<_, Error>((heard, child.wait().await.map_err(|error| failed("no-box", error.to_string()))?))
    };
    let patience = Duration::from_secs(request.limits.cpu_seconds.saturating_mul(PATIENCE));
    // What is still there is ended with its handle.
    let Ok(ran) = timeout(patience, run).await else {
        let why = format!(
            "it was not done after {} s, and was ended; what is made by now is kept",
            patience.as_secs()
        );
        return Err(failed("too-slow", why));
    };
    let ((pieces, ended), status) = ran?;
    if !status.success() || !ended {
        let (name, why) = cause(status, request, &log);
        return Err(failed(name, why));
    }
    let largest = largest_file(request)?;
    pieces.iter().try_for_each(|piece| {
        verify(piece, &work.join("made"), largest).map_err(|why| failed("not-as-told", why))
    })?;
    Ok(pieces)
}

/// What the program may write into one file.
fn largest_file(request: &Request) -> Result<Bytes, Error> {
    let parent = request.parent_file();
    let about = fs::metadata(parent).map_err(|source| Error::Read { path: parent.to_owned(), source })?;
    Ok(Bytes(about.len().saturating_mul(LARGER).max(SMALLEST_LIMIT)))
}

fn command(request: &Request, tools: &Tools, work: &Path) -> Result<Command, Error> {
    let made = work.join("made");
    let mut read: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    read.extend([&tools.python, &tools.libraries, &tools.program].map(Clone::clone));
    read.extend(tools.prefixes.iter().filter(|prefix| *prefix != Path::new("/")).cloned());
    read.push(work.to_owned());
    let allowed = Boxed {
        read,
        write: vec![made.clone()],
        memory: request.limits.memory,
        file: largest_file(request)?,
        cpu_seconds: request.limits.cpu_seconds,
        sandbox: Sandbox::default(),
        unboxed: request.limits.unboxed,
    };
    let (program, words) =
        request.limits.enter.split_first().expect("something enters the box; this is a bug");
    let mut command = Command::new(program);
    command.args(words).arg(allowed.argument()).arg(&tools.python);
    command.args(["-s", "-B", "-m", "modelless_generator"]).arg(work.join("job.json"));
    let path = std::env::join_paths([&tools.program, &tools.libraries])
        .map_err(|error| Error::Tools(format!("the folder of the tools cannot be named: {error}")))?;
    command.env_clear().env("PYTHONPATH", path).env("TMPDIR", &made).env("HOME", &made);
    // One core, for whatever serves here comes first; and nothing is reported to the makers of libraries.
    for name in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ORT_DISABLE_TELEMETRY"] {
        command.env(name, "1");
    }
    Ok(command)
}

/// The end of a program that did not say why.
fn cause(status: ExitStatus, request: &Request, log: &Path) -> (&'static str, String) {
    let limits = &request.limits;
    if status.signal() == Some(libc_sigxcpu()) {
        let why = format!(
            "it took more than {} s of a processor, and was ended; what is made by now is kept: give it more (--time) and \
             start again",
            limits.cpu_seconds
        );
        return ("too-slow", why);
    }
    let said = end_of_file(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let said = said.trim();
    let start = said.ceil_char_boundary(said.len().saturating_sub(SHOWN));
    let why = format!(
        "the program that makes them ended with {status}; if it ran out of its {} of memory, give it more (--memory). It said: {}",
        limits.memory,
        &said[start..]
    );
    ("ended", why)
}

/// The last of a file: who wrote it may have written much.
fn end_of_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let shown = u64::try_from(SHOWN).unwrap_or(u64::MAX);
    file.seek(SeekFrom::Start(length.saturating_sub(2 * shown)))?;
    let mut last = Vec::new();
    file.take(2 * shown).read_to_end(&mut last)?;
    Ok(last)
}

/// The signal of a process that used up its time.
const fn libc_sigxcpu() -> i32 {
    24
}

/// A hostile model may make the program say anything.
fn verify(piece: &Piece, made: &Path, largest: Bytes) -> Result<(), String> {
    let plain = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if ![&piece.recipe, &piece.name, &piece.precision].into_iter().all(|text| plain(text)) {
        return Err(format!("what was made has no plain name: {:?}", piece.name));
    }
    if piece.outcome != Outcome::Made {
        return Ok(());
    }
    let (Some(file), Some(sha256)) = (&piece.file, &piece.sha256) else {
        return Err(format!("{} was made, but no file is named", piece.name));
    };
    let end = convert::end_of(convert::engine_of(&piece.recipe));
    let stem = file.strip_suffix(end).and_then(|stem| stem.strip_suffix('.'));
    let stem = stem.filter(|stem| stem.len() == 64 && plain(stem));
    stem.ok_or_else(|| format!("{} is in a file of no such name: {file:?}", piece.name))?;
    let path = made.join(file);
    // Its own file, not a way to another.
    let fits = |about: &fs::Metadata| about.is_file() && about.len() <= largest.0;
    let is_file = fs::symlink_metadata(&path).is_ok_and(|about| fits(&about));
    let content = if is_file { fs::read(&path).ok() } else { None };
    match content {
        Some(content) if digest(&[&content]) == *sha256 => Ok(()),
        Some(_) | None => Err(format!("{} is not what was told of it", piece.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: Bytes = Bytes(5);

    fn piece(text: &str) -> Piece {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_file_that_is_another_or_lies_elsewhere_is_not_taken() {
        let folder = modelless_testkit::temp_dir("made").unwrap();
        let name = "ab".repeat(32);
        fs::write(folder.path().join(format!("{name}.onnx")), "model").unwrap();
        let told = |file: &str, sha256: &str| {
            piece(&format!(
                r#"{{"base": "", "recipe": "fp16", "name": "fp16", "precision": "fp16", "outcome": "made", "file": "{file}",
                    "sha256": "{sha256}"}}"#
            ))
        };
        let good = digest(&[b"model"]);
        assert_eq!(verify(&told(&format!("{name}.onnx"), &good), folder.path(), LARGEST), Ok(()));
        assert!(
            verify(&told(&format!("{name}.onnx"), &digest(&[b"other"])), folder.path(), LARGEST).is_err()
        );
        assert!(verify(&told("../../etc/passwd", &good), folder.path(), LARGEST).is_err());
        let larger = "ef".repeat(32);
        fs::write(folder.path().join(format!("{larger}.onnx")), "larger").unwrap();
        let larger = told(&format!("{larger}.onnx"), &digest(&[b"larger"]));
        assert!(verify(&larger, folder.path(), LARGEST).is_err());
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join(format!("{}.onnx", "cd".repeat(32))))
            .unwrap();
        assert!(verify(&told(&format!("{}.onnx", "cd".repeat(32)), &good), folder.path(), LARGEST).is_err());
        let mut odd = told(&format!("{name}.onnx"), &good);
        odd.name = "x\"]\n[evil".to_owned();
        assert!(verify(&odd, folder.path(), LARGEST).is_err());
    }
}
