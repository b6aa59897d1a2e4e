//! How much memory the kernel lets a runner have: what its variants were measured to need, and what it reserves besides.
//!
//! The watch sees what a runner touched, some time afterwards, and ends it. The kernel refuses at the moment, and whoever is
//! refused may live and say so. But it counts what is reserved and never touched, too, so its limit stands above the watch's.
//!
//! It is set from here, because it changes with what is in the runner: of the two limits that a process has, the one that
//! holds. The other one, up to which that can be raised, is the node's, and the runner has entered it for good
//! (`sandbox::limits`).
#![expect(unsafe_code, reason = "setting a limit of another process")]

use super::keeper::Keeper;
use super::spawn::Process;
use crate::sandbox::Layer;
use modelless_types::Bytes;
use std::io;

/// Memory that a library reserves and never touches: the kernel counts it, we do not.
pub(super) const RESERVED: Bytes = Bytes::from_mib(256);
/// The stack of a thread of a library's pool, as the C library reserves it.
const STACK: Bytes = Bytes::from_mib(8);

impl Keeper {
    /// What the loads of its variants say together, and never more than any runner may hold.
    pub(super) fn may_hold(&self) -> Option<Bytes> {
        let said = self.allowed.values().copied().collect::<Option<Vec<_>>>();
        let said = said.filter(|said| !said.is_empty());
        let said =
            said.map(|said| said.into_iter().fold(Bytes(0), |sum, one| Bytes(sum.0.saturating_add(one.0))));
        said.into_iter().chain(self.inner.config.memory_limit).min()
    }

    /// The watch goes by that from now on.
    pub(super) fn allow(&self) {
        self.runner.allow(self.may_hold());
    }

    /// So does the kernel. Not for a model on a GPU: a driver reserves many times what it touches.
    pub(super) fn bound(&self, process: &Process) {
        let config = &self.inner.config;
        if config.gpu || config.sandbox.without.contains(&Layer::Limits) {
            return;
        }
        let bound = self.may_hold().map(|may| of(may, self.allowed.len()));
        if let Err(error) = hold(process.pid(), bound) {
            // What it was started with stands, and so does the watch.
            tracing::debug!(model = %self.model, %error, "the memory of a runner is not bound to what it was measured to need");
        }
    }
}

/// The bound of a runner that may touch so much, with so many variants, each with a pool of at most a thread for each core.
/// Libraries take memory for what runs in pieces that double in size, of which half may never be touched.
fn of(touched: Bytes, variants: usize) -> Bytes {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = u64::try_from(cores.saturating_mul(variants.saturating_add(1))).unwrap_or(u64::MAX);
    let reserved = STACK.0.saturating_mul(threads).saturating_add(RESERVED.0);
    Bytes(touched.0.saturating_add(touched.0 / 2).saturating_add(reserved))
}

/// Holds a process to so much, and never to more than it entered; to that, where nothing is said. The process is one of ours
/// that was not reaped yet, so the number is still its.
fn hold(pid: u32, to: Option<Bytes>) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a struct that is written.
    done(unsafe { libc::prlimit(pid, libc::RLIMIT_DATA, std::ptr::null(), &raw mut limit) })?;
    limit.rlim_cur = to.map_or(limit.rlim_max, |to| to.0.min(limit.rlim_max));
    // SAFETY: a struct that is read.
    done(unsafe { libc::prlimit(pid, libc::RLIMIT_DATA, &raw const limit, std::ptr::null_mut()) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_leaves_room_for_what_is_reserved_and_grows_with_what_is_in_the_runner() {
        let one = of(Bytes::from_mib(100), 1);
        assert!(one > Bytes::from_mib(150) + RESERVED, "{one}");
        assert!(of(Bytes::from_mib(100), 2) > one, "another pool");
        assert!(of(Bytes::from_mib(200), 1).0 - one.0 == Bytes::from_mib(150).0);
        assert_eq!(of(Bytes(u64::MAX), 9), Bytes(u64::MAX));
    }
}
