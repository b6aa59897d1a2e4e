//! What nobody names any more is cleared away, after a while.
//!
//! An artefact is sent before the model that names it is stored, and measuring in between takes time. So what is young
//! stays, and whoever is about to use one that lies here says so ([`Artefacts::wanted`]), which makes it young again. Both
//! take the folder's lock, so that none is taken away between being said to be here and being young.

use super::{Artefacts, make_folder};
use crate::check;
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// One round takes no more away than this; the next one goes on.
const AT_ONCE: usize = 1_000;
/// Stores that are remembered to have used a folder; with a second one nothing is cleared any more.
const STORES: usize = 2;
/// Stands for whoever put things here before stores were noted.
const UNKNOWN: &str = "somebody";

/// What was cleared away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleared {
    /// How many artefacts.
    pub artefacts: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Artefacts {
    /// Takes away what is not `named` and was neither put here nor wanted for so long. `store` is the address of the store
    /// that names them all: a folder that another store has used as well is left as it is, as nobody knows what that one
    /// names.
    pub fn clear(&self, store: &str, named: &BTreeSet<String>, unused: Duration) -> Result<Cleared> {
        check::sha256("store", store)?;
        let mut cleared = Cleared::default();
        if !self.used_by(store)? {
            return Ok(cleared);
        }
        for sha256 in self.here()? {
            if cleared.artefacts == AT_ONCE {
                break;
            }
            if named.contains(&sha256) {
                continue;
            }
            if let Some(bytes) = self.clear_one(&sha256, unused)? {
                tracing::info!(sha256, bytes, "cleared away an artefact that no model names");
                cleared.artefacts += 1;
                cleared.bytes += bytes;
            }
        }
        self.clear_marks(unused);
        Ok(cleared)
    }

    /// Marks an artefact as young, if it is here.
    pub(super) fn want(&self, sha256: &str) -> Result<()> {
        check::sha256("artefact", sha256)?;
        let _lock = self.lock(File::lock_shared)?;
        if !self.path(sha256)?.exists() {
            return Ok(());
        }
        let folder = self.marks();
        make_folder(&folder)?;
        let path = folder.join(sha256);
        let mark = || {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
            file.set_modified(SystemTime::now())
        };
        mark().map_err(|source| Error::Io { doing: "write", path: path.clone(), source })
    }

    /// Notes that what lies here is named by this store; said once before anything is put here for it. Whether it is the only
    /// one. Where artefacts lay here before anybody said so, nobody knows who else names them.
    pub fn used_by(&self, store: &str) -> Result<bool> {
        let _lock = self.lock(File::lock)?;
        let path = self.folder.join("stores");
        let (known, first) = match fs::read_to_string(&path) {
            Ok(known) => (known, false),
            Err(error) if error.kind() == ErrorKind::NotFound => (String::new(), true),
            Err(source) => return Err(Error::Io { doing: "read", path, source }),
        };
        let mut stores: BTreeSet<&str> = known.lines().collect();
        let mut add = String::new();
        if first && !self.here()?.is_empty() {
            add.push_str(UNKNOWN);
            add.push('\n');
            stores.insert(UNKNOWN);
        }
        if !stores.contains(store) && stores.len() <= STORES {
            add.push_str(store);
            add.push('\n');
            stores.insert(store);
        }
        if !add.is_empty() {
            let write = || {
                let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
                file.write_all(add.as_bytes())?;
                file.sync_all()
            };
            write().map_err(|source| Error::Io { doing: "write", path: path.clone(), source })?;
        }
        Ok(stores.len() == 1 && stores.contains(store))
    }

    /// Everything that lies here.
    fn here(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for shelf in entries(&self.folder)? {
            let is_shelf = shelf.file_name().is_some_and(|name| name.len() == 2);
            if is_shelf && shelf.is_dir() {
                let names = entries(&shelf)?.into_iter();
                let names = names.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
                found.extend(names.filter(|name| check::sha256("artefact", name).is_ok()));
            }
        }
        Ok(found)
    }

    /// How many bytes were given back, if it was old enough.
    fn clear_one(&self, sha256: &str, unused: Duration) -> Result<Option<u64>> {
        let (path, mark) = (self.path(sha256)?, self.marks().join(sha256));
        let _lock = self.lock(File::lock)?;
        let old = |path: &Path| {
            let modified = fs::metadata(path).and_then(|about| about.modified());
            modified.map(|at| at.elapsed().is_ok_and(|age| age >= unused))
        };
        // Without a mark it is as old as its file.
        if !old(&path).unwrap_or(false) || !old(&mark).unwrap_or(true) {
            return Ok(None);
        }
        let bytes = fs::metadata(&path).map_or(0, |about| about.len());
        match fs::remove_file(&path) {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { doing: "clear away", path, source }),
        }
    }

    /// Best effort: a mark takes no room worth speaking of.
    fn clear_marks(&self, unused: Duration) {
        let Ok(_lock) = self.lock(File::lock) else { return };
        for mark in entries(&self.marks()).unwrap_or_default() {
            let modified = fs::metadata(&mark).and_then(|about| about.modified());
            if modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= unused)) {
                let _ = fs::remove_file(mark);
            }
        }
    }

    fn marks(&self) -> PathBuf {
        self.folder.join("wanted")
    }

    /// Held until it is dropped.
    fn lock(&self, how: fn(&File) -> std::io::Result<()>) -> Result<File> {
        let path = self.folder.join("lock");
        let lock = || {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
            how(&file)?;
            Ok(file)
        };
        lock().map_err(|source| Error::Io { doing: "lock", path: path.clone(), source })
    }
}

/// What lies in a folder; nothing, if there is none.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect();
    match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => {
            read.map_err(|source| Error::Io { doing: "read the folder", path: folder.to_owned(), source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: BTreeSet<String> = BTreeSet::new();
    const NOW: Duration = Duration::ZERO;
    const LATER: Duration = Duration::from_hours(24);

    fn store(number: u8) -> String {
        format!("{number:064x}")
    }

    #[test]
    fn what_nobody_names_goes_when_it_is_old_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let artefacts = Artefacts::new(folder.path()).unwrap();
        assert!(artefacts.used_by(&store(1)).unwrap());
        let [named, unnamed] = [b"named".as_slice(), b"unnamed"].map(|it| artefacts.put(it).unwrap().sha256);
        let names = BTreeSet::from([named.clone()]);
        assert_eq!(
            artefacts.clear(&store(1), &names, LATER).unwrap(),
            Cleared::default(),
            "all of it is young"
        );
        let cleared = artefacts.clear(&store(1), &names, NOW).unwrap();
        assert_eq!(cleared, Cleared { artefacts: 1, bytes: 7 });
        assert!(artefacts.open(&named).is_ok());
        assert!(matches!(artefacts.open(&unnamed), Err(Error::NotFound { .. })));
        assert_eq!(artefacts.clear(&store(1), &names, NOW).unwrap(), Cleared::default());
        // It can be put there again.
        assert_eq!(artefacts.put(&b"unnamed"[..]).unwrap().sha256, unnamed);
    }

    #[test]
    fn what_somebody_is_about_to_use_is_young_again() {
        let folder = tempfile::tempdir().unwrap();
        let artefacts = Artefacts::new(folder.path()).unwrap();
        assert!(artefacts.used_by(&store(1)).unwrap());
        let old = artefacts.put(&b"old"[..]).unwrap().sha256;
        let long_ago = SystemTime::now() - LATER * 2;
        let path = artefacts.path(&old).unwrap();
        File::open(&path).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(artefacts.wanted(&old).unwrap(), Some(3));
        assert_eq!(artefacts.clear(&store(1), &NONE, LATER).unwrap(), Cleared::default());
        File::options()
            .write(true)
            .open(artefacts.marks().join(&old))
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        assert_eq!(artefacts.clear(&store(1), &NONE, LATER).unwrap().artefacts, 1);
        assert_eq!(artefacts.wanted(&old).unwrap(), None, "gone, and said so");
        assert!(entries(&artefacts.marks()).unwrap().is_empty(), "and no mark is left of it");
    }

    #[test]
    fn what_is_damaged_is_as_good_as_none_until_it_is_sent_again() {
        let folder = tempfile::tempdir().unwrap();
        let artefacts = Artefacts::new(folder.path()).unwrap();
        let sha256 = artefacts.put(&b"whole"[..]).unwrap().sha256;
        let path = artefacts.path(&sha256).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"whale").unwrap();
        assert_eq!(artefacts.wanted(&sha256).unwrap(), None);
        artefacts.put(&b"whole"[..]).unwrap();
        assert_eq!(artefacts.wanted(&sha256).unwrap(), Some(5));
        assert!(artefacts.wanted("../etc/passwd").is_err());
    }

    #[test]
    fn a_folder_that_another_store_has_used_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let artefacts = Artefacts::new(folder.path()).unwrap();
        assert!(artefacts.used_by(&store(1)).unwrap());
        artefacts.put(&b"of the first"[..]).unwrap();
        for number in [2, 1, 3, 1] {
            assert_eq!(artefacts.clear(&store(number), &NONE, NOW).unwrap(), Cleared::default(), "{number}");
        }
        let known = fs::read_to_string(folder.path().join("stores")).unwrap();
        assert!(known.lines().count() <= STORES + 1, "the list does not grow: {known}");

        // Nobody knows who put things here before stores were noted.
        let folder = tempfile::tempdir().unwrap();
        let artefacts = Artefacts::new(folder.path()).unwrap();
        artefacts.put(&b"of somebody"[..]).unwrap();
        assert!(!artefacts.used_by(&store(1)).unwrap());
        assert_eq!(artefacts.clear(&store(1), &NONE, NOW).unwrap(), Cleared::default());
    }

    #[test]
    fn whoever_wants_one_while_it_is_cleared_away_has_it_or_is_told_that_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let artefacts = Artefacts::new(folder.path()).unwrap();
        assert!(artefacts.used_by(&store(1)).unwrap());
        for round in 0..50_u32 {
            let sha256 = artefacts.put(&round.to_le_bytes()[..]).unwrap().sha256;
            let path = artefacts.path(&sha256).unwrap();
            File::open(&path).unwrap().set_modified(SystemTime::now() - LATER * 2).unwrap();
            let wanted = std::thread::scope(|scope| {
                let wanting = scope.spawn(|| artefacts.wanted(&sha256).unwrap());
                artefacts.clear(&store(1), &NONE, LATER).unwrap();
                wanting.join().unwrap()
            });
            // Either it was marked first, and is here for good, or it went first.
            assert_eq!(wanted.is_some(), path.exists(), "round {round}");
        }
    }
}
