//! Memory that two processes see. All of this crate's mapping, and so most of its `unsafe`, is here.
//!
//! A [`Mapping`] hands out copies, atomics and bounds-checked pointers. References into it exist only in
//! [`crate::slot`], which knows who owns a region at a time.
#![expect(unsafe_code, reason = "mmap, and access to memory that another process writes")]

use crate::clock;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A mapped range of memory, unmapped on drop.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that stays mapped until drop, whichever thread holds it. Everything
// reached through `&self` is an atomic, a copy, or a raw pointer whose user answers for it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Mapping {
    /// New shared memory of a size that nobody can change any more: without `F_SEAL_SHRINK` a broken runner
    /// could truncate it and have the executor killed by SIGBUS.
    pub(crate) fn create(name: &str, len: usize) -> io::Result<(OwnedFd, Self)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            other => other?,
        };
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let mapping = Self::map(&fd, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
        Ok((fd, mapping))
    }

    /// The other side's view of shared memory. Refused unless it is sealed and as large as agreed.
    pub(crate) fn open(fd: impl AsFd, len: usize) -> io::Result<Self> {
        let size = rustix::fs::fstat(&fd)?.st_size;
        if usize::try_from(size) != Ok(len) || !rustix::fs::fcntl_get_seals(&fd)?.contains(SEALS) {
            return Err(io::Error::other("shared memory of another size than agreed, or not sealed"));
        }
        Self::map(fd, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    /// A file, to be read. If somebody truncates it the reader gets SIGBUS, which is why only runners call this.
    ///
    /// Where it has to come from the disk it comes in large pieces, of the file system's memory as well: page by page takes
    /// twice as long. Where the kernel does not do that, nothing is lost.
    pub(crate) fn of_file(fd: impl AsFd) -> io::Result<Self> {
        let len = usize::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(io::Error::other)?;
        let mapping = Self::map(fd, len, ProtFlags::READ, MapFlags::PRIVATE)?;
        // SAFETY: advice on a mapping of ours, which changes nothing of what is in it.
        let _ = unsafe {
            rustix::mm::madvise(mapping.start.as_ptr().cast(), len, rustix::mm::Advice::LinuxHugepage)
        };
        Ok(mapping)
    }

    /// Memory of this process alone.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        check_len(len)?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        Ok(Self { start: non_null(start)?, len })
    }

    fn map(fd: impl AsFd, len: usize, prot: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        check_len(len)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) }?;
        Ok(Self { start: non_null(start)?, len })
    }

    /// How many bytes it has.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Where a range begins. Panics if it lies outside.
    pub(crate) fn pointer(&self, range: &Range<usize>) -> NonNull<u8> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a range outside of the mapping; this is a bug"
        );
        // SAFETY: `range.start <= len`, so the result lies in the mapping or one past its end.
        unsafe { self.start.add(range.start) }
    }

    /// The whole as a slice.
    ///
    /// # Safety
    /// Nobody writes to it while the slice lives.
    pub(crate) unsafe fn whole(&self) -> &[u8] {
        // SAFETY: mapped readable for `len` bytes; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// A word that both sides use as an atomic.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "an unaligned word; this is a bug");
        let pointer = self.pointer(&(offset..offset + 4)).cast::<u32>();
        // SAFETY: in the mapping, aligned, and only ever accessed as an atomic by either side.
        unsafe { AtomicU32::from_ptr(pointer.as_ptr()) }
    }

    /// Copies out. If the other side breaks the protocol and writes meanwhile, the copy is garbage but ours:
    /// what is checked afterwards stays checked.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.pointer(&(offset..offset + into.len()));
        // SAFETY: `from` is valid for that many bytes, and `into` is memory of this process only.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) }
    }

    /// Copies in. The caller's protocol says that it is its turn to write there.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        let into = self.pointer(&(offset..offset + from.len()));
        // SAFETY: `into` is valid for that many bytes, and `from` is memory of this process only.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_ptr(), from.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and nothing borrowed from `self` is alive.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap of our own mapping fails; this is a bug");
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Sleeps until `word` is no longer `seen`, and returns what it is.
pub(crate) fn wait_while(word: &AtomicU32, seen: u32) -> u32 {
    loop {
        let value = word.load(Ordering::Acquire);
        if value != seen {
            return value;
        }
        // Any answer (changed meanwhile, woken, interrupted) means: look again.
        let _ = futex::wait(word, futex::Flags::empty(), seen, None);
    }
}

/// The same, but who is woken with nothing changed stays awake for `linger`: it was told that something will change.
pub(crate) fn wait_while_lingering(word: &AtomicU32, seen: u32, linger: Duration) -> u32 {
    loop {
        let value = word.load(Ordering::Acquire);
        if value != seen {
            return value;
        }
        if futex::wait(word, futex::Flags::empty(), seen, None).is_ok() {
            let until = clock::now() + linger;
            while word.load(Ordering::Acquire) == seen && clock::now() < until {
                std::thread::yield_now();
            }
        }
    }
}

/// Wakes whoever sleeps on `word`, in any process.
pub(crate) fn wake(word: &AtomicU32) {
    // It can only fail on an address that is not mapped.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

fn check_len(len: usize) -> io::Result<()> {
    if len == 0 { Err(io::Error::other("cannot map nothing: the file or region is empty")) } else { Ok(()) }
}

fn non_null(start: *mut core::ffi::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned a null pointer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_bytes() {
        let (fd, ours) = Mapping::create("test", 8192).unwrap();
        let theirs = Mapping::open(&fd, 8192).unwrap();
        ours.write(4096, b"batch");
        let mut seen = [0; 5];
        theirs.read(4096, &mut seen);
        assert_eq!(&seen, b"batch");
    }

    #[test]
    fn nobody_can_shrink_it_under_the_other() {
        let (fd, _ours) = Mapping::create("test", 8192).unwrap();
        assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
    }

    #[test]
    fn refuses_memory_of_another_size_or_without_seals() {
        let (fd, _ours) = Mapping::create("test", 8192).unwrap();
        assert!(Mapping::open(&fd, 4096).is_err());
        let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(Mapping::open(&open, 4096).is_err());
    }

    #[test]
    fn a_sleeper_wakes_when_the_word_changes() {
        let (fd, ours) = Mapping::create("test", 4096).unwrap();
        let theirs = Mapping::open(&fd, 4096).unwrap();
        let sleeper = std::thread::spawn(move || wait_while(theirs.word(64), 0));
        ours.word(64).store(7, Ordering::Release);
        wake(ours.word(64));
        assert_eq!(sleeper.join().unwrap(), 7);
    }
}
