//! Artefacts are what their address says, or are not given out.

use modelless_store::{Artefacts, Error};
use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// sha256 of "abc", as every description of it gives.
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn gives_back_what_was_put() {
    let folder = tempfile::tempdir().unwrap();
    let store = Artefacts::new(folder.path().join("artefacts")).unwrap();
    let put = store.put(&b"abc"[..]).unwrap();
    assert_eq!((put.sha256.as_str(), put.bytes), (ABC, 3));
    let mut text = String::new();
    store.open(ABC).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "abc");

    let big: Vec<u8> = (0..1_000_003_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    let file = folder.path().join("model.onnx");
    fs::write(&file, &big).unwrap();
    let put = store.put_file(&file).unwrap();
    let mut back = Vec::new();
    store.open(&put.sha256).unwrap().read_to_end(&mut back).unwrap();
    assert!(back == big && put.bytes == 1_000_003);
    assert_eq!(store.put_file(&file).unwrap(), put, "twice is once");
    let kept = files(&folder.path().join("artefacts"));
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(kept.contains(&format!("ba/{ABC}")), "{kept:?}");
}

#[test]
fn a_damaged_artefact_is_refused_and_healed_by_putting_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Artefacts::new(folder.path()).unwrap();
    store.put(&b"abc"[..]).unwrap();
    let path = store.path(ABC).unwrap();
    for damage in [&b"abd"[..], b"", b"abcd"] {
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, damage).unwrap();
        let Error::ArtefactCorrupt { path: named, expected, found } = store.open(ABC).unwrap_err() else {
            panic!("{damage:?} is no damage?");
        };
        assert_eq!((named, expected.as_str()), (path.clone(), ABC));
        assert_ne!(found, ABC);
    }
    store.put(&b"abc"[..]).unwrap();
    store.open(ABC).unwrap();
}

#[test]
fn an_interrupted_put_leaves_nothing() {
    struct Breaks(usize);
    impl Read for Breaks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or_else(|| io::Error::other("the cable was pulled"))?;
            buffer.fill(7);
            Ok(buffer.len())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let store = Artefacts::new(folder.path()).unwrap();
    let error = store.put(Breaks(5)).unwrap_err();
    assert!(error.to_string().contains("the cable was pulled"), "{error}");
    assert!(files(folder.path()).is_empty());
}

#[test]
fn only_addresses_are_looked_up() {
    let folder = tempfile::tempdir().unwrap();
    let store = Artefacts::new(folder.path()).unwrap();
    for address in ["", "../../../etc/passwd", "ü", &ABC.to_uppercase(), &ABC[..63]] {
        assert!(matches!(store.open(address), Err(Error::Invalid { .. })), "{address}");
    }
    assert!(matches!(store.open(ABC), Err(Error::NotFound { .. })));
    assert!(matches!(store.put_file(folder.path()), Err(Error::Invalid { .. })));
    assert!(matches!(store.put_file(&folder.path().join("none")), Err(Error::Io { .. })));
}

#[test]
fn what_a_crash_left_half_written_is_cleared_away_later() {
    let folder = tempfile::tempdir().unwrap();
    Artefacts::new(folder.path()).unwrap();
    let (old, fresh) = (folder.path().join("incoming/old"), folder.path().join("incoming/fresh"));
    for path in [&old, &fresh] {
        fs::write(path, "half").unwrap();
    }
    let two_days_ago = SystemTime::now() - Duration::from_hours(48);
    fs::File::options().write(true).open(&old).unwrap().set_modified(two_days_ago).unwrap();
    Artefacts::new(folder.path()).unwrap();
    assert!(!old.exists());
    assert!(fresh.exists(), "another process may still be writing it");
}

#[test]
fn many_at_once_put_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let store = Artefacts::new(folder.path()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                store.put(&b"abc"[..]).unwrap();
                store.open(ABC).unwrap();
            });
        }
    });
    assert_eq!(files(folder.path()), [format!("ba/{ABC}")]);
}

#[test]
fn what_turns_out_to_be_another_artefact_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = Artefacts::new(folder.path()).unwrap();
    let refused = store.put_as(ABC, &b"abd"[..]).unwrap_err().to_string();
    assert!(refused.contains(ABC) && refused.contains("and has"), "{refused}");
    assert_eq!(files(folder.path()), [""; 0]);
    assert_eq!(store.put_as(ABC, &b"abc"[..]).unwrap().sha256, ABC);
    assert_eq!(files(folder.path()), [format!("ba/{ABC}")]);
}
