//! Threads that answers wait for, and the kernel's turns between threads.
//!
//! Where there are more threads than cores, one that wakes up waits until the one before it has had its turn: up to 4 ms on a
//! kernel that ticks 250 times a second. Batches are shorter than that. A thread may ask for short turns (Linux 6.12); it then
//! gets no more of a core, only sooner: at once, in place of one that is in the middle of a long turn.
#![expect(unsafe_code, reason = "a system call for which there is no safe binding")]

use std::sync::OnceLock;

/// The shortest turn that the kernel grants, in nanoseconds.
const TURN: u64 = 100_000;

/// The longest one.
const LONG_TURN: u64 = 100_000_000;

/// By so much less nice a share of a core is about a tenth of one that is not: enough that whatever runs ends, however busy
/// the others are, and little enough that they hardly notice.
const STANDS_BACK: i32 = 10;

/// The least that there is.
const LEAST_SHARE: i32 = 19;

/// As the kernel's `sched_attr`, in its first version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The calling thread takes short turns from now on, where the kernel knows such a thing. So do threads and processes that it
/// starts.
pub fn take_short_turns() {
    take_turns(TURN);
}

/// The calling thread takes turns as long as everybody's, whatever started it.
pub(crate) fn take_usual_turns() {
    take_turns(0);
}

fn take_turns(turn: u64) {
    // Any other way of scheduling was chosen by somebody who knew why.
    if let Some(usual) = Attributes::of(0).filter(Attributes::is_usual) {
        Attributes { runtime: turn, ..usual }.give(0);
    }
}

impl Attributes {
    /// A thread's; 0 is the calling one.
    fn of(thread: i32) -> Option<Self> {
        let size = u32::try_from(size_of::<Self>()).unwrap_or_default();
        let mut attributes = Self::default();
        // SAFETY: a struct of the size given, which the kernel fills.
        let read = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
        (read == 0).then_some(Self { size, ..attributes })
    }

    const fn is_usual(&self) -> bool {
        self.policy == libc::SCHED_OTHER.unsigned_abs()
    }

    /// The niceness of a smaller share.
    fn smaller(&self) -> i32 {
        (self.nice + STANDS_BACK).min(LEAST_SHARE)
    }

    fn give(&self, thread: i32) -> bool {
        // SAFETY: a struct of the size that it states, which the kernel reads. Older kernels ignore the turn.
        unsafe { libc::syscall(libc::SYS_sched_setattr, thread, std::ptr::from_ref(self), 0) == 0 }
    }
}

/// A thread that stands back behind others, and how it was before.
#[derive(Debug)]
pub(crate) struct StoodBack {
    thread: i32,
    before: Attributes,
}

impl StoodBack {
    /// Has a thread of whatever process take a small share of a core where others want it, in long turns, which those who take
    /// short ones cut in on. It always gets on: only where nobody else wants to run, it might wait for ever. Where nobody may
    /// take a smaller share back, it keeps its own. `None` if it ended or may not be changed.
    pub(crate) fn make(thread: i32) -> Option<Self> {
        let before = Attributes::of(thread).filter(Attributes::is_usual)?;
        let nice = if comes_forward() { before.smaller() } else { before.nice };
        // What runs in batches cuts in on nobody when it wakes up.
        let policy = libc::SCHED_BATCH.unsigned_abs();
        let back = Attributes { policy, nice, runtime: LONG_TURN, ..before };
        back.give(thread).then_some(Self { thread, before })
    }

    /// It is as it was before.
    pub(crate) fn end(self) -> bool {
        self.before.give(self.thread)
    }
}

/// Whether this process may give a thread its share back. Without rights of its own it may not.
fn comes_forward() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    let tries = || {
        let usual = Attributes::of(0).filter(Attributes::is_usual)?;
        Some(Attributes { nice: usual.smaller(), ..usual }.give(0) && usual.give(0))
    };
    // On a thread of its own, which may be left as it is.
    *MAY.get_or_init(|| std::thread::spawn(tries).join().ok().flatten().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Attributes {
        Attributes::of(0).unwrap_or_else(|| panic!("{}", std::io::Error::last_os_error()))
    }

    #[test]
    fn a_thread_that_stood_back_comes_forward_again_as_it_was() {
        let (before, back, after) = std::thread::spawn(|| {
            take_short_turns();
            let before = seen();
            let stood = StoodBack::make(0).expect("it is there");
            let back = seen();
            assert!(stood.end());
            (before, back, seen())
        })
        .join()
        .unwrap();
        assert_eq!(back.policy, libc::SCHED_BATCH.unsigned_abs());
        // A share of its own, so that it ends whatever else there is to do.
        let less = if comes_forward() { STANDS_BACK } else { 0 };
        assert_eq!(back.nice, (before.nice + less).min(LEAST_SHARE));
        assert_eq!((after.policy, after.nice, after.runtime), (before.policy, before.nice, before.runtime));
    }

    #[test]
    fn a_thread_that_takes_short_turns_keeps_its_policy_and_its_priority() {
        let (own, inherited, usual) = std::thread::spawn(|| {
            take_short_turns();
            let inherited = std::thread::spawn(|| {
                let inherited = seen();
                take_usual_turns();
                (inherited, seen())
            });
            let (inherited, usual) = inherited.join().unwrap();
            (seen(), inherited, usual)
        })
        .join()
        .unwrap();
        let before = seen();
        assert_eq!(own.runtime, inherited.runtime);
        assert_eq!(usual.runtime, before.runtime);
        // Kernels before 6.12 know no turns and say 0.
        let short = if before.runtime == 0 { 0 } else { TURN };
        assert_eq!((own.runtime, own.policy, own.nice), (short, before.policy, before.nice));
    }
}
