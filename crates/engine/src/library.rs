//! Where the inference libraries lie, and what they can compute on.

use modelless_types::{Engine, Processor};
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// The version of ONNX Runtime that is installed and tested.
pub const ONNX_VERSION: &str = "1.31.1";
/// The version of OpenVINO that is installed and tested.
pub const OPENVINO_VERSION: &str = "2026.4.1";
/// The version of libtorch that is installed and tested.
pub const TORCH_VERSION: &str = "2.11.0";

/// Where what `modelless engine install` fetches for an engine lies, whether it is there or not: its library, or the
/// runner that is linked to it. `None` for engines that need none.
pub fn installed_engine(engines_dir: &Path, engine: Engine) -> Option<PathBuf> {
    match engine {
        Engine::Onnx => Some(installed(engines_dir)),
        Engine::Openvino => Some(engines_dir.join("openvino").join(OPENVINO_VERSION).join(OPENVINO_LIBRARY)),
        Engine::Torch => Some(engines_dir.join("torch").join(TORCH_VERSION).join("lib").join(TORCH_LIBRARY)),
        Engine::Remote => None,
    }
}

/// The runner that hosts libtorch, beside what it is linked to.
pub fn torch_runner(engines_dir: &Path) -> PathBuf {
    engines_dir.join("torch").join(TORCH_VERSION).join("bin").join("modelless-runner-torch")
}

const OPENVINO_LIBRARY: &str = "libopenvino_c.so.2641";
const TORCH_LIBRARY: &str = "libtorch_cpu.so";

/// Whether ONNX Runtime at `library` could compute on a processor: the provider's library lies beside it, and the
/// device is there. Whether the two get on is known when a model is loaded.
pub fn has_processor(library: &Path, processor: Processor) -> Result<(), String> {
    let (name, number) = match processor {
        Processor::Cpu => return Ok(()),
        Processor::Cuda(number) => ("cuda", number),
        Processor::Tensorrt(number) => ("tensorrt", number),
    };
    let provider =
        library.parent().unwrap_or(Path::new("/")).join(format!("libonnxruntime_providers_{name}.so"));
    if !provider.is_file() {
        return Err(format!(
            "{processor} needs {}, which is not there; it comes with the package onnxruntime-gpu: name the \
             libonnxruntime.so of that with --onnxruntime PATH",
            provider.display()
        ));
    }
    let device = format!("/dev/nvidia{number}");
    if Path::new(&device).exists() {
        Ok(())
    } else {
        Err(format!("{processor} needs an NVIDIA GPU, and there is no {device} here"))
    }
}

/// A library that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Library {
    /// The file.
    pub path: PathBuf,
    /// Who named it.
    pub source: Source,
}

/// How a library was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// By the user, with `--onnxruntime`.
    Option,
    /// By the environment, with `ORT_DYLIB_PATH`.
    Environment,
    /// Among the installed engines.
    Installed,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Option => "--onnxruntime",
            Self::Environment => "ORT_DYLIB_PATH",
            Self::Installed => "the installation",
        })
    }
}

/// Why there is no library.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LibraryError {
    /// None is installed.
    #[error(
        "ONNX Runtime is not installed ({} does not exist); run `modelless engine install onnx`, or name a \
         libonnxruntime.so with --onnxruntime PATH or ORT_DYLIB_PATH",
        .0.display()
    )]
    Missing(PathBuf),
    /// The user named one that is not there. Not a reason to take another.
    #[error("{by} names {}, but there is no libonnxruntime.so", .path.display())]
    NotThere {
        /// Who named it.
        by: Source,
        /// What was named.
        path: PathBuf,
    },
}

impl Library {
    /// The library to use: the one given, else the environment's, else the installed one.
    pub fn locate(explicit: Option<PathBuf>, engines_dir: &Path) -> Result<Self, LibraryError> {
        let named = explicit.map(|path| (path, Source::Option));
        let from_environment = || {
            env::var_os("ORT_DYLIB_PATH")
                .filter(|path| !path.is_empty())
                .map(|path| (path.into(), Source::Environment))
        };
        if let Some((path, source)) = named.or_else(from_environment) {
            return match library_at(&path) {
                Some(path) => Ok(Self { path, source }),
                None => Err(LibraryError::NotThere { by: source, path }),
            };
        }
        let path = installed(engines_dir);
        if path.is_file() {
            Ok(Self { path, source: Source::Installed })
        } else {
            Err(LibraryError::Missing(path))
        }
    }
}

/// Where the installed library lies, whether it is there or not.
pub fn installed(engines_dir: &Path) -> PathBuf {
    engines_dir.join("onnx").join(ONNX_VERSION).join(format!("libonnxruntime.so.{ONNX_VERSION}"))
}

/// Where engines are installed: `MODELLESS_ENGINES`, else `modelless/engines` in the user's data folder.
pub fn default_engines_dir() -> PathBuf {
    let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = var("MODELLESS_ENGINES") {
        return dir;
    }
    let data = var("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let data = data.or_else(|| var("HOME").map(|home| home.join(".local/share")));
    data.unwrap_or_else(|| PathBuf::from("/var/lib")).join("modelless/engines")
}

/// The library at a path: the file itself, or the one in a folder. Always absolute.
fn library_at(path: &Path) -> Option<PathBuf> {
    let found = if path.is_dir() {
        let mut names: Vec<_> = std::fs::read_dir(path)
            .ok()?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so"))
            })
            .collect();
        names.sort();
        names.pop()?
    } else {
        path.to_owned()
    };
    found.is_file().then(|| std::path::absolute(&found).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_the_user_names_comes_first_and_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let installed = installed(dir.path());
        fs::create_dir_all(installed.parent().unwrap()).unwrap();
        fs::write(&installed, "").unwrap();
        let own = dir.path().join("own.so");
        let missing = Library::locate(Some(own.clone()), dir.path());
        assert_eq!(missing, Err(LibraryError::NotThere { by: Source::Option, path: own.clone() }));
        fs::write(&own, "").unwrap();
        let found = Library::locate(Some(own.clone()), dir.path()).unwrap();
        assert_eq!(found, Library { path: own, source: Source::Option });
    }

    #[test]
    fn a_processor_that_is_not_there_is_said_to_be_missing_and_what_brings_it() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libonnxruntime.so");
        assert_eq!(has_processor(&library, Processor::Cpu), Ok(()));
        let missing = has_processor(&library, Processor::Cuda(0)).unwrap_err();
        assert!(missing.contains("onnxruntime-gpu") && missing.contains("providers_cuda"), "{missing}");
        fs::write(dir.path().join("libonnxruntime_providers_tensorrt.so"), "").unwrap();
        let missing = has_processor(&library, Processor::Tensorrt(9_999)).unwrap_err();
        assert!(missing.contains("/dev/nvidia9999"), "{missing}");
    }

    #[test]
    fn a_folder_means_the_library_in_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Library::locate(Some(dir.path().to_owned()), dir.path()).is_err());
        let file = dir.path().join("libonnxruntime.so.1.31.1");
        fs::write(&file, "").unwrap();
        let found = Library::locate(Some(dir.path().to_owned()), dir.path()).unwrap();
        assert_eq!(found.path, file);
    }
}
