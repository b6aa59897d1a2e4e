//! Threads that a library starts by itself while it loads a model.
//!
//! A load gives way, whatever it starts inherits that, and nothing takes it back ([`super::gentle`]). ONNX Runtime asks for
//! each of its threads; others call `pthread_create`. So their calls are led here before anything is loaded: in each
//! library's table of what it calls in others, that one place is written over. A call from a thread that gives way is then
//! made by the main thread, which does not, with the very same arguments; every other call goes where it always went.
//!
//! It is done in runners only, and while they have one thread. Where it finds nothing to write over, loads do not give way.
#![expect(
    unsafe_code,
    reason = "tables of the dynamic linker, and the C library's own call to start a thread"
)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::mpsc::{SyncSender, sync_channel};

/// What every library that starts threads gets them by, in the end.
const CALLED: &CStr = c"pthread_create";

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;

/// A call to be made by another thread. The caller waits for it, so what is pointed to stays.
pub(super) struct Call {
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
    reply: SyncSender<c_int>,
}

// SAFETY: what is pointed to is the new thread's, or belongs to a thread that waits until the call was made.
unsafe impl Send for Call {}

impl Call {
    /// Makes it on this thread.
    pub(super) fn make(self) {
        // SAFETY: the arguments are those of whoever called, and still stand.
        let made = unsafe { libc::pthread_create(self.thread, self.attributes, self.routine, self.argument) };
        let _ = self.reply.send(made);
    }
}

type Hand = Box<dyn Fn(Call) -> Result<(), Call>>;

thread_local! {
    /// Where this thread's calls go, while it gives way.
    static HAND: std::cell::RefCell<Option<Hand>> = const { std::cell::RefCell::new(None) };
}

/// While it lives, what this thread starts is handed over. A call that is given back is made here.
pub(super) struct Handing(());

impl Handing {
    pub(super) fn over(hand: Hand) -> Self {
        HAND.set(Some(hand));
        Self(())
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        HAND.set(None);
    }
}

/// In the place of the C library's.
unsafe extern "C" fn start(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    let (reply, made) = sync_channel(1);
    let call = Call { thread, attributes, routine, argument, reply };
    let here = HAND.try_with(|hand| match hand.try_borrow() {
        Ok(hand) => match &*hand {
            Some(hand) => hand(call),
            None => Err(call),
        },
        Err(_) => Err(call),
    });
    match here {
        Ok(Ok(())) => made.recv().unwrap_or(libc::EAGAIN),
        Ok(Err(call)) => {
            call.make();
            made.recv().unwrap_or(libc::EAGAIN)
        }
        // This thread is about to end, and its locals are gone.
        // SAFETY: the caller's arguments.
        Err(_) => unsafe { libc::pthread_create(thread, attributes, routine, argument) },
    }
}

/// Leads the calls of all libraries that are mapped by now to [`start`]. How many do call it.
pub(super) fn lead() -> usize {
    let mut led = 0_usize;
    // SAFETY: the function is called once for each library with what is mapped for good, and with `led`, which outlives
    // the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut led).cast()) };
    led
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, led: *mut c_void) -> c_int {
    // SAFETY: what the linker hands out, for the time of this call.
    let info = unsafe { &*info };
    // The program itself comes first and has no name: what it starts it starts knowingly.
    // SAFETY: null or a C string.
    let named = !info.dlpi_name.is_null() && unsafe { *info.dlpi_name } != 0;
    if named && let Some(table) = Table::of(info) {
        // SAFETY: as `lead` says.
        unsafe { *led.cast::<usize>() += table.lead() };
    }
    0
}

/// An entry of a library's table of itself.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// A place in a library that the linker fills with an address.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

const JUMP_RELOCATIONS: i64 = 23;
const JUMP_RELOCATIONS_SIZE: i64 = 2;
const RELOCATIONS: i64 = 7;
const RELOCATIONS_SIZE: i64 = 8;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;

/// Kinds of places that hold a function's address.
#[cfg(target_arch = "x86_64")]
const KINDS: [u64; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const KINDS: [u64; 2] = [1025, 1026];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const KINDS: [u64; 0] = [];

/// What a library says of what it calls in others.
struct Table {
    base: usize,
    strings: usize,
    symbols: usize,
    /// Where lists of places are, and their sizes in bytes.
    lists: [(usize, usize); 2],
    /// What the linker made read-only when it had filled it.
    sealed: std::ops::Range<usize>,
}

impl Table {
    fn of(info: &libc::dl_phdr_info) -> Option<Self> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        // SAFETY: so many headers stand there.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let mut entry = at::<Dynamic>(base + usize::try_from(dynamic.p_vaddr).ok()?);
        let sealed = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO);
        let sealed = sealed.and_then(|header| {
            let start = base + usize::try_from(header.p_vaddr).ok()?;
            Some(start..start + usize::try_from(header.p_memsz).ok()?)
        });
        let mut found =
            Self { base, strings: 0, symbols: 0, lists: [(0, 0); 2], sealed: sealed.unwrap_or(0..0) };
        loop {
            // SAFETY: the table ends with an entry of tag 0.
            let Dynamic { tag, value } = unsafe { entry.read() };
            // glibc has put addresses there by now; others leave them relative to the library.
            let size = usize::try_from(value).ok()?;
            let address = if size < base { base + size } else { size };
            match tag {
                0 => break,
                STRINGS => found.strings = address,
                SYMBOLS => found.symbols = address,
                JUMP_RELOCATIONS => found.lists[0].0 = address,
                JUMP_RELOCATIONS_SIZE => found.lists[0].1 = size,
                RELOCATIONS => found.lists[1].0 = address,
                RELOCATIONS_SIZE => found.lists[1].1 = size,
                _ => {}
            }
            // SAFETY: not the last one.
            entry = unsafe { entry.add(1) };
        }
        (found.strings != 0 && found.symbols != 0).then_some(found)
    }

    /// Writes over the places that hold the address of what is called.
    fn lead(&self) -> usize {
        let mut led = 0;
        for (list, size) in self.lists {
            let count = if list == 0 { 0 } else { size / size_of::<Relocation>() };
            for ix in 0..count {
                // SAFETY: so many entries stand there.
                let place = unsafe { at::<Relocation>(list).add(ix).read() };
                if KINDS.contains(&(place.info & 0xffff_ffff)) && self.calls(place.info >> 32) {
                    led += usize::from(self.write(place.offset));
                }
            }
        }
        led
    }

    fn calls(&self, symbol: u64) -> bool {
        let Ok(symbol) = usize::try_from(symbol) else { return false };
        // SAFETY: relocations name symbols that are there, and those names that are there and end with a NUL.
        let name = unsafe {
            let symbol = at::<libc::Elf64_Sym>(self.symbols).add(symbol).read();
            CStr::from_ptr(at(self.strings + symbol.st_name as usize))
        };
        name == CALLED
    }

    /// Puts our own address there.
    fn write(&self, offset: u64) -> bool {
        let Ok(offset) = usize::try_from(offset) else { return false };
        let place = self.base + offset;
        // SAFETY: a number.
        let Ok(size) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return false };
        let page = at::<c_void>(place & !(size - 1)).cast_mut();
        let may = |access| {
            // SAFETY: the page of a place that the linker filled; it stays readable.
            unsafe { libc::mprotect(page, size, access) == 0 }
        };
        if !may(libc::PROT_READ | libc::PROT_WRITE) {
            return false;
        }
        // SAFETY: such a place holds the address of a function of this signature, and is writable now.
        unsafe { at::<usize>(place).cast_mut().write((start as *const ()).expose_provenance()) };
        !self.sealed.contains(&place) || may(libc::PROT_READ)
    }
}

/// Addresses of what the linker mapped, long ago and for good.
const fn at<T>(address: usize) -> *const T {
    std::ptr::with_exposed_provenance(address)
}
