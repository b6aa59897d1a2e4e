//! Tends the spare, and kills runners: those whose batch runs over its limit, and those that hold more memory than they
//! may. What stands back in one that was killed, it lets come forward to end.
//!
//! It looks every [`EVERY`] rather than being told of each batch: telling it would cost every batch a wake-up, and
//! limits are a matter of seconds. It sleeps without end while there is no runner.

use super::lane::Lane;
use super::{Inner, lock, spare};
use crate::clock;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::Thread;
use std::time::Duration;

/// How late a hung batch may be noticed.
const EVERY: Duration = Duration::from_millis(25);
/// How many looks there are for one at memory, which is read from the file system. A process can fill some hundred
/// megabytes between two; a limit of the kernel's stands a little above ours. Where a batch has run since the last look, it is
/// looked at every time: what eats memory without end holds its lane until it is found.
const LOOKS_FOR_MEMORY: u32 = 4;

#[derive(Debug)]
pub(super) struct Watch {
    inner: Weak<Inner>,
    thread: Mutex<Option<Thread>>,
    stopped: Arc<AtomicBool>,
}

impl Watch {
    pub(super) fn new(inner: Weak<Inner>) -> Self {
        Self { inner, thread: Mutex::default(), stopped: Arc::default() }
    }

    pub(super) fn start(&self) -> io::Result<()> {
        let (inner, stopped) = (self.inner.clone(), Arc::clone(&self.stopped));
        let started = std::thread::Builder::new().name("engine-watch".to_owned());
        let handle = started.spawn(move || {
            let mut looks = 0_u32;
            while !stopped.load(Ordering::Acquire) && look(&inner, looks.is_multiple_of(LOOKS_FOR_MEMORY)) {
                looks = looks.wrapping_add(1);
            }
        })?;
        *lock(&self.thread) = Some(handle.thread().clone());
        Ok(())
    }

    /// There is a runner now.
    pub(super) fn wake(&self) {
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }
}

/// Looks once and sleeps. False when the engine is gone.
fn look(inner: &Weak<Inner>, memory: bool) -> bool {
    let now = clock::now();
    let (runners, spare) = {
        let Some(inner) = inner.upgrade() else { return false };
        let spare = spare::tend(&inner, now);
        let state = inner.read();
        (state.runners.values().map(|handle| Arc::clone(&handle.runner)).collect::<Vec<_>>(), spare)
    };
    for runner in &runners {
        let looked = |lane: &Arc<Lane>| {
            lane.let_out();
            lane.watch(now)
        };
        let longest = lock(&runner.lanes).iter().map(looked).max();
        if memory || longest.is_some_and(|ran| ran >= EVERY) {
            runner.watch_usage();
        }
    }
    match (runners.is_empty(), spare) {
        (true, None) => std::thread::park(),
        (true, Some(at)) => std::thread::park_timeout(at.saturating_duration_since(now)),
        (false, _) => std::thread::park_timeout(EVERY),
    }
    true
}
