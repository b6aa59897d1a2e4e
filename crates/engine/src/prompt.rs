//! Threads that answers wait for, and the kernel's turns between threads.
//!
//! Where there are more threads than cores, one that wakes up waits until the one before it has had its turn: up to 4 ms on a
//! kernel that ticks 250 times a second. Batches are shorter than that. A thread may ask for short turns (Linux 6.12); it then
//! gets no more of a core, only sooner: at once, in place of one that is in the middle of a long turn.
#![expect(unsafe_code, reason = "a system call for which there is no safe binding")]

/// The shortest turn that the kernel grants, in nanoseconds.
const TURN: u64 = 100_000;

/// As the kernel's `sched_attr`, in its first version.
#[repr(C)]
#[derive(Default)]
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
    let size = u32::try_from(size_of::<Attributes>()).unwrap_or_default();
    let mut attributes = Attributes { size, ..Attributes::default() };
    // SAFETY: a struct of the size given, which the kernel fills. 0 is the calling thread.
    let read = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    // Any other way of scheduling was chosen by somebody who knew why.
    if read != 0 || attributes.policy != libc::SCHED_OTHER.unsigned_abs() {
        return;
    }
    (attributes.size, attributes.runtime) = (size, turn);
    // SAFETY: a struct of the size that it states, which the kernel reads. Older kernels ignore the turn.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Attributes {
        let size = u32::try_from(size_of::<Attributes>()).unwrap();
        let mut seen = Attributes { size, ..Attributes::default() };
        // SAFETY: a struct of the size given. 0 is the calling thread.
        let read = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut seen, size, 0) };
        assert_eq!(read, 0, "{}", std::io::Error::last_os_error());
        seen
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
