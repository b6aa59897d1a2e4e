//! A part of an object in `/dev/shm`, opened once and copied from and to.
//!
//! Never mapped: whoever else has the object may cut it short at any moment, and touching a page that is gone would end this process.

use super::{Area, out_of};
use crate::errors::ApiError;
use crate::suggest::excerpt;
use http::StatusCode;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, open, openat};
use rustix::io::{Errno, pread, pwrite};

/// Where POSIX shared memory lies.
const FOLDER: &str = "/dev/shm";
/// What a file system in memory is called by: on any other a client could have us wait for a disk, or for a program of its own.
const TMPFS: u64 = 0x0102_1994;
/// Of an object's name.
const KEY_MAX: usize = 255;
/// Copied before others get their turn.
const STEP: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    file: OwnedFd,
    /// As it was named.
    pub(super) key: String,
    /// Where the region begins in it.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Memory {
    /// Opens an object of this user, of which the region is these bytes from this offset on.
    pub(super) fn open(key: &str, (offset, bytes): (u64, u64), user: u32) -> Result<Self, ApiError> {
        let name = name(key)?;
        let failed = |error: Errno| match error {
            Errno::NOENT => {
                let message = format!("there is no shared memory {} on the server's machine", excerpt(key));
                ApiError::not_found("no_such_memory", message)
            }
            Errno::ACCESS | Errno::PERM => not_yours(&format!(
                "the server may not read and write the shared memory {}: it runs as another user than you",
                excerpt(key)
            )),
            other => unusable(key, &format!("it cannot be opened: {other}")),
        };
        let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(FOLDER, folder, Mode::empty()).map_err(failed)?;
        // One name in one folder, no link, made by somebody else; and nothing that would have us wait for its other end.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = openat(&folder, name, flags, Mode::empty()).map_err(failed)?;
        let about = fstat(&file).map_err(failed)?;
        let system = fstatfs(&file).map_err(failed)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile
            || u64::try_from(system.f_type).ok() != Some(TMPFS)
        {
            return Err(unusable(key, "it is no shared memory"));
        }
        if about.st_uid != user {
            return Err(not_yours(&format!("the shared memory {} belongs to another user", excerpt(key))));
        }
        let size = u64::try_from(about.st_size).unwrap_or(0);
        let end = offset.checked_add(bytes);
        if bytes == 0 || end.is_none_or(|end| end > size) {
            let message = format!(
                "{bytes} bytes from {offset} on are not within the shared memory {}, which has {size}",
                excerpt(key)
            );
            return Err(out_of(message));
        }
        Ok(Self { file, key: key.to_owned(), offset, bytes })
    }

    /// Copies an area out, whose bounds were checked against the region's.
    pub(super) async fn read(&self, area: &Area) -> Result<Vec<u8>, ApiError> {
        let mut bytes = vec![0; usize::try_from(area.bytes).map_err(|_| self.shrunk(area))?];
        let mut done = 0;
        while done < bytes.len() {
            let end = bytes.len().min(done + STEP);
            match pread(&self.file, &mut bytes[done..end], self.offset + area.offset + done as u64) {
                Ok(0) => return Err(self.shrunk(area)),
                Ok(some) => done += some,
                Err(Errno::INTR) => {}
                Err(error) => return Err(unusable(&self.key, &format!("it cannot be read: {error}"))),
            }
            if done < bytes.len() {
                tokio::task::yield_now().await;
            }
        }
        Ok(bytes)
    }

    /// Copies bytes in at an area's begin. The object is not made larger than it is.
    pub(super) async fn write(&self, area: &Area, bytes: &[u8]) -> Result<(), ApiError> {
        let failed = |error: Errno| unusable(&self.key, &format!("it cannot be written: {error}"));
        let mut done = 0;
        while done < bytes.len() {
            let end = bytes.len().min(done + STEP);
            let at = self.offset + area.offset + done as u64;
            let size = fstat(&self.file).map_err(failed)?.st_size;
            // Who cuts it short just now has it made as long again as the region was: no longer than what they registered.
            if u64::try_from(size).unwrap_or(0) < at + (end - done) as u64 {
                return Err(self.shrunk(area));
            }
            match pwrite(&self.file, &bytes[done..end], at) {
                Ok(0) => return Err(failed(Errno::NOSPC)),
                Ok(some) => done += some,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
            if done < bytes.len() {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    fn shrunk(&self, area: &Area) -> ApiError {
        out_of(format!(
            "the shared memory {} has become shorter since the region {} was registered",
            excerpt(&self.key),
            excerpt(&area.region)
        ))
    }
}

/// The one name in a key; a slash may stand before it, as POSIX writes it.
fn name(key: &str) -> Result<&str, ApiError> {
    let name = key.strip_prefix('/').unwrap_or(key);
    let plain = !name.is_empty() && name.len() <= KEY_MAX && !name.contains(['/', '\0']);
    if plain && name != "." && name != ".." {
        return Ok(name);
    }
    let message = format!("{} names no shared memory: it is `/NAME`, without other slashes", excerpt(key));
    Err(ApiError::malformed(message))
}

fn not_yours(message: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "not_your_memory", message)
}

fn unusable(key: &str, why: &str) -> ApiError {
    let message = format!("the shared memory {}: {why}", excerpt(key));
    ApiError::new(StatusCode::BAD_REQUEST, "unusable_memory", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::path::PathBuf;

    /// A file in the folder of shared memory, gone with the value.
    struct Object(PathBuf);

    impl Object {
        fn new(name: &str, bytes: &[u8]) -> Self {
            let path = PathBuf::from(FOLDER).join(format!("modelless-memory-{}-{name}", std::process::id()));
            fs::write(&path, bytes).unwrap();
            Self(path)
        }

        fn key(&self) -> String {
            format!("/{}", self.0.file_name().unwrap().to_str().unwrap())
        }

        fn open(&self, offset: u64, bytes: u64) -> Result<Memory, ApiError> {
            Memory::open(&self.key(), (offset, bytes), rustix::process::getuid().as_raw())
        }

        fn cut(&self, size: u64) {
            File::options().write(true).open(&self.0).unwrap().set_len(size).unwrap();
        }
    }

    impl Drop for Object {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn area(offset: u64, bytes: u64) -> Area {
        Area { region: "r".to_owned(), offset, bytes }
    }

    fn reason<T: std::fmt::Debug>(done: Result<T, ApiError>) -> &'static str {
        done.unwrap_err().reason
    }

    #[tokio::test]
    async fn bytes_are_copied_out_and_in_at_their_place() {
        let large = vec![7; 3 * STEP + 5];
        let object = Object::new("copies", &large);
        let memory = object.open(3, large.len() as u64 - 3).unwrap();
        memory.write(&area(2, 4), b"abcd").await.unwrap();
        assert_eq!(memory.read(&area(1, 6)).await.unwrap(), b"\x07abcd\x07");
        let whole = memory.read(&area(0, memory.bytes)).await.unwrap();
        assert_eq!(whole.len(), large.len() - 3);
        assert_eq!(fs::read(&object.0).unwrap()[5..9], *b"abcd");
        memory.write(&area(0, memory.bytes), &large[3..]).await.unwrap();
        assert_eq!(fs::read(&object.0).unwrap(), large);
    }

    #[tokio::test]
    async fn an_object_that_was_cut_short_is_refused_and_not_made_longer() {
        let object = Object::new("cut", &[1; 64]);
        let memory = object.open(0, 64).unwrap();
        object.cut(16);
        assert_eq!(reason(memory.read(&area(8, 16)).await), "out_of_region");
        assert_eq!(reason(memory.write(&area(8, 16), &[2; 16]).await), "out_of_region");
        assert_eq!(fs::read(&object.0).unwrap(), [1; 16], "nothing was written");
        // What is still there can be used, also once the object has lost its name.
        fs::remove_file(&object.0).unwrap();
        assert_eq!(memory.read(&area(0, 16)).await.unwrap(), [1; 16]);
    }

    #[test]
    fn only_what_is_in_the_object_can_be_a_region() {
        let object = Object::new("bounds", &[0; 64]);
        for (offset, bytes) in [(0, 65), (64, 1), (1, 64), (u64::MAX, 1), (1, u64::MAX), (0, 0)] {
            assert_eq!(reason(object.open(offset, bytes)), "out_of_region", "{bytes} from {offset}");
        }
        assert!(object.open(63, 1).is_ok());
    }

    #[test]
    fn an_object_of_another_user_is_not_opened_for_whoever_asks() {
        let object = Object::new("other", &[0; 64]);
        let other = rustix::process::getuid().as_raw() + 1;
        assert_eq!(reason(Memory::open(&object.key(), (0, 64), other)), "not_your_memory");
    }

    #[test]
    fn keys_name_one_object_and_nothing_else() {
        for key in ["", "/", "//x", "a/b", "/../etc/passwd", "..", "/.", "x\0y", &"x".repeat(256)] {
            assert_eq!(reason(Memory::open(key, (0, 1), 0)), "malformed", "{key:?}");
        }
        assert_eq!(reason(Memory::open("/modelless-no-such-object", (0, 1), 0)), "no_such_memory");
        // What is no memory, though it lies in that folder: another name of a file elsewhere, a pipe, a folder.
        let object = Object::new("kinds", b"");
        for make in [
            |path: &PathBuf| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(),
            |path: &PathBuf| {
                let other = path.with_extension("linked");
                fs::write(&other, [0; 8]).unwrap();
                std::os::unix::fs::symlink(other, path).unwrap();
            },
            |path: &PathBuf| {
                rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            },
        ] {
            fs::remove_file(&object.0).unwrap();
            make(&object.0);
            assert_eq!(reason(object.open(0, 1)), "unusable_memory");
        }
        fs::remove_file(&object.0).unwrap();
        fs::remove_file(object.0.with_extension("linked")).unwrap();
        fs::create_dir(&object.0).unwrap();
        assert_eq!(reason(object.open(0, 1)), "unusable_memory");
        fs::remove_dir(&object.0).unwrap();
    }
}
