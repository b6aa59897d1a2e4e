//! The folder of one running platform, and the lock that keeps a second one out.

use crate::error::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A data folder that only this process uses, for as long as this value lives. The system itself gives the lock
/// back when the process ends, however it ends, so a stale one cannot be left behind.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Open means locked. Never inherited by runners: files are opened close-on-exec.
    _lock: File,
}

impl DataDir {
    /// Takes the folder, making it (for its owner only) if it does not exist.
    pub fn lock(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let io = |doing, path: &Path, source| Error::Io { doing, path: path.to_owned(), source };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| io("make the data folder", path, error))?;
        // Whoever changes directory later still finds it.
        let path = path.canonicalize().map_err(|error| io("find the data folder", path, error))?;

        let lock_path = path.join("lock");
        // Not truncated: until the lock is ours, the number in it is somebody else's.
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|error| io("open", &lock_path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Locked { path, pid: holder(&lock) }),
            Err(TryLockError::Error(error)) => return Err(io("lock", &lock_path, error)),
        }
        sign(&mut lock).map_err(|error| io("write", &lock_path, error))?;
        Ok(Self { path, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the embedded database is.
    pub fn database(&self) -> PathBuf {
        Self::database_in(&self.path)
    }

    /// The same in a folder that somebody else may hold.
    pub fn database_in(path: impl AsRef<Path>) -> PathBuf {
        path.as_ref().join("modelless.db")
    }

    /// Where artefacts are.
    pub fn artefacts(&self) -> PathBuf {
        self.path.join("artefacts")
    }
}

fn sign(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    writeln!(lock, "{}", std::process::id())
}

/// Who says to hold it. `None` in the moment between locking and writing.
fn holder(lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
