//! How a runner's heap behaves: few page faults while a model is loaded, and nothing kept afterwards that is not needed.
//!
//! Half of the time of loading a large model goes into faulting in fresh memory, 4 KiB at a time: libraries parse the file
//! into one copy of the weights and make another one to run with. On huge pages there are a twentieth of the faults. They
//! A large page is also made ready as a whole, which under a hypervisor takes up to milliseconds in which nothing else runs on
//! that core: a load that gives way goes without. They come with the C library's own switches, set from outside since a library
//! is mapped before anything of ours runs. Elsewhere than on glibc they mean nothing.
#![expect(unsafe_code, reason = "the C library's call to give memory back")]

/// One heap for all threads, or those of the thread that loads would have neither huge pages nor what was warmed up; large
/// pieces come from it rather than each from a mapping of its own, which starts out cold; it keeps what was freed until
/// [`give_back`].
pub(crate) const TUNED: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=33554432:\
     glibc.malloc.trim_threshold=67108864",
);

/// From how large a file on large pages pay: they are 2 MiB, and what a small model takes of them would be mostly unused.
const LARGE: usize = 8 << 20;

/// Small pages, until something large is loaded.
pub(crate) fn begin() {
    large_pages(false);
}

/// A model of that size is about to be loaded.
pub(crate) fn make_ready(size: usize) {
    if size >= LARGE {
        large_pages(true);
    }
}

fn large_pages(wanted: bool) {
    let zero: libc::c_ulong = 0;
    // SAFETY: numbers only. It fails where the kernel knows no large pages.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(!wanted), zero, zero, zero);
    }
}

/// Gives back to the system what the heap holds and nobody uses: after a load, the copies that were made on the way.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches free memory only, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(KEPT);
    }
}

/// What stays at the heap's top, for the first batches.
#[cfg(target_env = "gnu")]
const KEPT: usize = 1 << 20;
