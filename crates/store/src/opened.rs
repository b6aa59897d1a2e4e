//! An artefact that is open: whether it lies in memory already, and whether it is what its address says.
//!
//! Reading a large file through takes as long as loading it, so both can go on beside each other: whoever loads
//! takes the descriptor, and this reads by position and never moves it. A file that was found whole once is known by
//! its inode, size and times and not read again.

use crate::error::{Error, Result};
use crate::records::hex;
use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Files that are remembered; the least recently named by address goes.
const REMEMBERED: usize = 4_096;
/// A file that was changed more recently than this may be changed again without its times telling: they move in steps
/// of some milliseconds. Such a file is not remembered.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Places of a file at which is looked whether they are in memory.
const SAMPLES: u64 = 64;

/// Files that were read through and found whole, by address.
#[derive(Debug, Default)]
pub(crate) struct Verified(Mutex<BTreeMap<String, Identity>>);

/// What changes when a file does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(about: &Metadata) -> Self {
        Self {
            device: about.dev(),
            inode: about.ino(),
            size: about.size(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }

    /// Whether what is in it now was there when it was read, as far as times tell.
    fn content(&self) -> (u64, (i64, i64)) {
        (self.size, self.modified)
    }

    fn settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(SETTLED_AFTER);
        let latest = self.modified.max(self.changed);
        latest <= (i64::try_from(now.as_secs()).unwrap_or(0), i64::from(now.subsec_nanos()))
    }
}

impl Verified {
    fn knows(&self, sha256: &str, identity: &Identity) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(sha256) == Some(identity)
    }

    fn remember(&self, sha256: &str, identity: Identity) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.pop_first();
        }
        known.insert(sha256.to_owned(), identity);
    }
}

/// An open artefact.
#[derive(Debug)]
pub struct Opened {
    file: File,
    path: PathBuf,
    sha256: String,
    identity: Identity,
    verified: Arc<Verified>,
}

impl Opened {
    pub(crate) fn open(path: PathBuf, sha256: &str, verified: &Arc<Verified>) -> Result<Self> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::not_found("artefact", path.display()));
            }
            Err(error) => return Err(unreadable(&path, error)),
        };
        let identity = Identity::of(&file.metadata().map_err(|error| unreadable(&path, error))?);
        let (sha256, verified) = (sha256.to_owned(), Arc::clone(verified));
        Ok(Self { file, path, sha256, identity, verified })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.identity.size
    }

    /// Whether it was read through before and has not changed since.
    pub fn is_verified(&self) -> bool {
        self.verified.knows(&self.sha256, &self.identity)
    }

    /// Whether it lies in memory, so that the disk is not needed to read it; judged by some places all over it.
    /// `None` where the file system does not tell.
    ///
    /// To ask for what is not there has the kernel fetch it, in small pieces, and all that is around them in small ones later. So
    /// nothing is asked any more once it is clear.
    pub fn is_cached(&self) -> Option<bool> {
        let (size, samples) = (self.identity.size, self.identity.size.min(SAMPLES));
        let mut missing = 0;
        for sample in 0..samples {
            // From the first byte to the last.
            let at = (size - 1) * sample / (samples - 1).max(1);
            let mut byte = [0];
            let read = rustix::io::preadv2(
                &self.file,
                &mut [IoSliceMut::new(&mut byte)],
                at,
                ReadWriteFlags::NOWAIT,
            );
            match read {
                Ok(_) => {}
                Err(Errno::AGAIN) => {
                    missing += 1;
                    if missing * 10 > samples {
                        return Some(false);
                    }
                }
                Err(_) => return None,
            }
        }
        Some(true)
    }

    /// Has it brought into memory, without waiting for that.
    pub fn read_ahead(&self) {
        if let Err(error) = rustix::fs::fadvise(&self.file, 0, None, Advice::WillNeed) {
            tracing::debug!(%error, path = %self.path.display(), "the file system takes no advice");
        }
    }

    /// The same file, to be given to whoever reads it. Moving its position moves nobody else's here.
    pub fn share(&self) -> Result<File> {
        self.file.try_clone().map_err(|error| unreadable(&self.path, error))
    }

    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Reads it through, unless that was done before: its content is what its address says. Blocks on the disk.
    pub fn verify(&self) -> Result<()> {
        if self.is_verified() {
            return Ok(());
        }
        let started = SystemTime::now();
        let io = |error| unreadable(&self.path, error);
        let found = digest(&self.file).map_err(io)?;
        if found != self.sha256 {
            let (path, expected) = (self.path.clone(), self.sha256.clone());
            return Err(Error::ArtefactCorrupt { path, expected, found });
        }
        let after = Identity::of(&self.file.metadata().map_err(io)?);
        if after.content() != self.identity.content() {
            return Err(io(io::Error::other("it changed while it was read")));
        }
        if self.identity.settled(started) {
            self.verified.remember(&self.sha256, self.identity);
        }
        Ok(())
    }
}

fn unreadable(path: &std::path::Path, source: io::Error) -> Error {
    Error::Io { doing: "read the artefact", path: path.to_owned(), source }
}

/// Reads by position, so that whoever shares the descriptor is not disturbed.
fn digest(file: &File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(read) => {
                hash.update(&buffer[..read]);
                at += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Artefacts;
    use std::fs::{self, Permissions};
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    /// An artefact that was put away long enough ago to be remembered.
    fn old(folder: &std::path::Path, content: &[u8]) -> (Artefacts, String, PathBuf) {
        let artefacts = Artefacts::new(folder).unwrap();
        let sha256 = artefacts.put(content).unwrap().sha256;
        let path = artefacts.path(&sha256).unwrap();
        (artefacts, sha256, path)
    }

    #[test]
    fn a_file_is_remembered_once_its_times_can_tell_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let (artefacts, sha256, _) = old(folder.path(), b"abc");
        let mut opened = artefacts.open_ahead(&sha256).unwrap();
        opened.verify().unwrap();
        assert!(!opened.is_verified(), "it was written a moment ago");
        // As if it had been written long ago; the real times cannot be set back.
        let long_ago = (opened.identity.changed.0 - 60, 0);
        opened.identity = Identity { changed: long_ago, modified: long_ago, ..opened.identity };
        assert!(opened.identity.settled(SystemTime::now()));
        artefacts.open_ahead(&sha256).unwrap().verified.remember(&sha256, opened.identity);
        assert!(opened.is_verified());
        for other in [
            Identity { inode: opened.identity.inode + 1, ..opened.identity },
            Identity { size: 4, ..opened.identity },
            Identity { changed: (long_ago.0, 1), ..opened.identity },
        ] {
            opened.identity = other;
            assert!(!opened.is_verified(), "{other:?}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let verified = Verified::default();
        let identity = Identity { device: 1, inode: 1, size: 1, modified: (0, 0), changed: (0, 0) };
        for number in 0..REMEMBERED + 10 {
            verified.remember(&format!("{number:064}"), identity);
        }
        assert_eq!(verified.0.lock().unwrap().len(), REMEMBERED);
    }

    #[test]
    fn verifying_does_not_move_the_position_of_who_reads_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (artefacts, sha256, _) = old(folder.path(), b"abcdef");
        let opened = artefacts.open_ahead(&sha256).unwrap();
        let mut shared = opened.share().unwrap();
        let mut half = [0; 3];
        shared.read_exact(&mut half).unwrap();
        opened.verify().unwrap();
        shared.read_exact(&mut half).unwrap();
        assert_eq!(&half, b"def");
    }

    #[test]
    fn damage_is_found_also_when_it_was_opened_before() {
        let folder = tempfile::tempdir().unwrap();
        let (artefacts, sha256, path) = old(folder.path(), b"abc");
        let opened = artefacts.open_ahead(&sha256).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, b"abd").unwrap();
        assert!(matches!(opened.verify(), Err(Error::ArtefactCorrupt { .. })));
    }

    #[test]
    fn a_file_just_written_lies_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let (artefacts, sha256, _) = old(folder.path(), &vec![7; 300_000]);
        let opened = artefacts.open_ahead(&sha256).unwrap();
        opened.read_ahead();
        opened.verify().unwrap();
        // Where the file system does not tell there is nothing to compare.
        assert_ne!(opened.is_cached(), Some(false));
        let empty = artefacts.put(&b""[..]).unwrap().sha256;
        assert_eq!(artefacts.open_ahead(&empty).unwrap().is_cached(), Some(true));
    }
}
