//! Limits, root's capabilities, and who may look into the process.

use super::{Policy, State};
use modelless_types::Bytes;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Descriptors: a message brings up to 64, and hardly any stay open.
const DESCRIPTORS: u64 = 256;

/// What the kernel adds to a runner's share of the machine's memory, in thousandths, when it has to end somebody for want of memory:
/// so a runner goes before whoever holds up to half of the machine more, the server among them. Not all thousand: then a
/// runner would go before whatever fills the machine.
const SOONER: i32 = 500;
/// The most that there is.
const FIRST_OF_ALL: i32 = 1_000;

/// No core dump with tenants' data in it, no file that grows, few descriptors, and so much memory; and it goes before the
/// server where the machine has none left.
///
/// Memory is what the process alone can write to: an inference library reserves address space that it never uses, so
/// a limit of that says nothing. There is no limit on processes: it would count those of the user, not of the runner,
/// and starting any is forbidden anyway.
pub(super) fn limit(policy: &Policy) -> State {
    let mut wanted = vec![(Resource::Core, 0)];
    if policy.gpu {
        // A driver keeps files of its own in memory, and one descriptor for each piece that it maps.
        wanted.push((Resource::Nofile, 4 * DESCRIPTORS));
    } else {
        wanted.extend([(Resource::Fsize, 0), (Resource::Nofile, DESCRIPTORS)]);
    }
    wanted.extend(policy.memory.map(|bytes| (Resource::Data, bytes.0)));
    let goes = go_sooner();
    match (set(&wanted), goes) {
        (State::On, Err(error)) => State::Partly(format!(
            "where the machine's memory ends, the server may be ended before a model's process: {GOES_BY}: {error}"
        )),
        (state, _) => state,
    }
}

/// Whom the kernel ends first.
const GOES_BY: &str = "/proc/self/oom_score_adj";

/// Sooner than whoever started it. That needs no right; to take it back does, or a file that it cannot open.
fn go_sooner() -> std::io::Result<()> {
    let before = std::fs::read_to_string(GOES_BY)?;
    let before: i32 = before.trim().parse().map_err(std::io::Error::other)?;
    std::fs::write(GOES_BY, (before + SOONER).min(FIRST_OF_ALL).to_string())
}

/// For a program of others: so much memory, address space and time, and no file larger than that.
pub(super) fn of_others(memory: Bytes, space: u64, file: Bytes, cpu_seconds: u64) -> State {
    set(&[
        (Resource::Core, 0),
        (Resource::Fsize, file.0),
        (Resource::Nofile, 4 * DESCRIPTORS),
        (Resource::Data, memory.0),
        (Resource::As, space),
        (Resource::Cpu, cpu_seconds),
    ])
}

/// Who takes no notice of the signal that its time is over has so many seconds more.
const CPU_GRACE_S: u64 = 2;

fn set(wanted: &[(Resource, u64)]) -> State {
    for &(resource, value) in wanted {
        // Never more than it was started with.
        let most = |wanted: u64| {
            rustix::process::getrlimit(resource).maximum.map_or(wanted, |most| most.min(wanted))
        };
        // At the first bound of a processor's time there is a signal that says why, at the second one that says nothing.
        let beyond =
            if matches!(resource, Resource::Cpu) { value.saturating_add(CPU_GRACE_S) } else { value };
        let limit = Rlimit { current: Some(most(value)), maximum: Some(most(beyond)) };
        if let Err(error) = rustix::process::setrlimit(resource, limit) {
            return State::Missing(format!("{resource:?} cannot be limited: {error}"));
        }
    }
    State::On
}

/// Whoever starts the server as root still gets runners that can do no more than other users'.
pub(super) fn drop_capabilities() -> State {
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    match rustix::thread::set_capabilities(None, none) {
        Ok(()) => State::On,
        Err(error) => State::Missing(error.to_string()),
    }
}

/// Keeps processes of the same user, other runners among them, from reading its memory.
pub(super) fn hide() -> State {
    match rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        Ok(()) => State::On,
        Err(Errno::INVAL) => State::Missing("this kernel does not have it".to_owned()),
        Err(error) => State::Missing(error.to_string()),
    }
}
