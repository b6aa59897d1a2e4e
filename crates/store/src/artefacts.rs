//! Artefacts by content: a file is found under the sha256 of what is in it, so equal ones are kept once and a
//! changed one is noticed.
//!
//! Everything here blocks on the disk; call it where that may be. Who needs an artefact is not known here: what is to go
//! is told by whoever knows ([`Artefacts::clear`]).

use crate::check;
use crate::error::{Error, Result};
use crate::opened::{Opened, Verified};
use crate::records::hex;
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{ErrorKind, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

mod clearing;

pub use clearing::Cleared;

/// Half-written files of a crashed process are cleared away once they are this old.
const LEFTOVER_AFTER: Duration = Duration::from_hours(24);

/// A folder of artefacts: `ab/abcdef...`. Several processes may use one.
#[derive(Clone, Debug)]
pub struct Artefacts {
    folder: PathBuf,
    /// Which files were read through and found whole.
    verified: Arc<Verified>,
}

/// An artefact that was put away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutArtefact {
    /// Its address: sha256 in lower-case hexadecimal.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

impl Artefacts {
    /// Uses a folder, making it if it does not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self> {
        let artefacts = Self { folder: folder.into(), verified: Arc::default() };
        make_folder(&artefacts.incoming())?;
        artefacts.clear_leftovers();
        Ok(artefacts)
    }

    /// Where an artefact is or would be.
    pub fn path(&self, sha256: &str) -> Result<PathBuf> {
        check::sha256("artefact", sha256)?;
        Ok(self.folder.join(&sha256[..2]).join(sha256))
    }

    /// Copies a file in.
    pub fn put_file(&self, path: &Path) -> Result<PutArtefact> {
        let io = |source| Error::Io { doing: "read the artefact", path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(Error::invalid("artefact", format!("{} is not a file", path.display())));
        }
        self.put_from(file, path, None)
    }

    /// Copies in what is read. After a return it is on the disk, whole, even if power fails; before, no part of
    /// it is to be seen.
    pub fn put(&self, from: impl Read) -> Result<PutArtefact> {
        self.put_from(from, Path::new("what was given"), None)
    }

    /// The same for what must turn out to be this artefact; otherwise nothing is kept of it.
    pub fn put_as(&self, sha256: &str, from: impl Read) -> Result<PutArtefact> {
        check::sha256("artefact", sha256)?;
        self.put_from(from, Path::new("what was given"), Some(sha256))
    }

    fn put_from(&self, mut from: impl Read, source: &Path, wanted: Option<&str>) -> Result<PutArtefact> {
        let incoming = self.incoming();
        let write =
            |error| Error::Io { doing: "write an artefact in", path: incoming.clone(), source: error };
        let mut file = tempfile::NamedTempFile::new_in(&incoming).map_err(write)?;
        let mut hash = Sha256::new();
        let mut bytes = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Error::Io { doing: "read", path: source.to_owned(), source: error });
                }
            };
            hash.update(&buffer[..read]);
            bytes += read as u64;
            file.write_all(&buffer[..read]).map_err(write)?;
        }
        let sha256 = hex(&hash.finalize());
        if let Some(wanted) = wanted.filter(|wanted| *wanted != sha256) {
            return Err(Error::invalid(
                "artefact",
                format!("it should have the sha256 {wanted} and has {sha256}"),
            ));
        }
        let path = self.path(&sha256)?;
        let shelf = path.parent().unwrap_or(&self.folder);
        make_folder(shelf)?;
        file.as_file().set_permissions(Permissions::from_mode(0o400)).map_err(write)?;
        file.as_file().sync_all().map_err(write)?;
        // Over one that is there already: it is equal, or damaged and healed by this.
        file.persist(&path).map_err(|error| write(error.error))?;
        sync_folder(shelf)?;
        Ok(PutArtefact { sha256, bytes })
    }

    /// Opens an artefact, at its start, whose content is what its address says: it was read through, now or earlier.
    pub fn open(&self, sha256: &str) -> Result<File> {
        let opened = self.open_ahead(sha256)?;
        opened.verify()?;
        Ok(opened.into_file())
    }

    /// Opens an artefact without reading it, for who can use the time that [`Opened::verify`] takes. Nothing that was
    /// made of it may be used before that has said yes.
    pub fn open_ahead(&self, sha256: &str) -> Result<Opened> {
        let path = self.path(sha256)?;
        Opened::open(path, sha256, &self.verified)
    }

    /// Opens an artefact for who registers something with it: it will not be cleared away soon.
    pub fn hold(&self, sha256: &str) -> Result<File> {
        self.want(sha256)?;
        self.open(sha256)
    }

    /// How large an artefact is, if it is here and whole; it will not be cleared away soon. For who is about to use it.
    pub fn wanted(&self, sha256: &str) -> Result<Option<u64>> {
        match self.hold(sha256) {
            Ok(file) => {
                let about = file.metadata();
                let path = self.path(sha256)?;
                about.map(|about| Some(about.len())).map_err(|source| Error::Io {
                    doing: "read the artefact",
                    path,
                    source,
                })
            }
            // One that is damaged is as good as none: when it is sent again it is healed.
            Err(Error::NotFound { .. } | Error::ArtefactCorrupt { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn incoming(&self) -> PathBuf {
        self.folder.join("incoming")
    }

    /// Best effort: what cannot be cleared only takes up room.
    fn clear_leftovers(&self) {
        let Ok(entries) = fs::read_dir(self.incoming()) else { return };
        for entry in entries.flatten() {
            let written =
                entry.metadata().and_then(|about| about.modified()).unwrap_or_else(|_| SystemTime::now());
            if written.elapsed().is_ok_and(|age| age > LEFTOVER_AFTER)
                && fs::remove_file(entry.path()).is_ok()
            {
                tracing::info!(file = %entry.path().display(), "cleared away an artefact that was never finished");
            }
        }
    }
}

/// The address of what is read.
pub fn sha256_of(mut from: impl Read) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(read) => hash.update(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn make_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let io = |source| Error::Io { doing: "make the folder", path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
    // The new name must survive too, or what is put inside would not.
    path.parent().map_or(Ok(()), sync_folder)
}

fn sync_folder(path: &Path) -> Result<()> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|source| Error::Io { doing: "write the folder", path: path.to_owned(), source })
}
