//! One runner that is started ahead, so that a load does not wait for a process and a library.
//!
//! The spare is a keeper that has started its runner and has no model yet; adopting it is giving it one. A new one is
//! started by the watch when nothing is being loaded, and gives way to everything else while it starts. One that dies
//! is replaced after a pause that doubles.

use super::keeper::{self, Handle, Job, Keeper};
use super::spawn::Heard;
use super::{Inner, ProcessEngine};
use crate::clock;
use crate::control::Gently;
use crate::seam::{EngineError, LoadSpec};
use modelless_types::{Bytes, ModelId};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What the engine's books say of it.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// Somebody uses this engine.
    wanted: bool,
    handle: Option<Handle>,
    /// It can be adopted.
    ready: bool,
    /// Ends in a row of spares that nobody adopted.
    lost: u32,
    not_before: Option<Instant>,
}

/// The spare as it is now, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpareInfo {
    /// Its process, once started.
    pub pid: Option<u32>,
    /// It waits for a model.
    pub ready: bool,
    /// Memory it holds now.
    pub memory: Bytes,
    /// How many ended in a row before anybody needed them.
    pub lost: u32,
}

impl Spare {
    /// From now on there should be one.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// The spare, if there is one that is ready, for a model.
    pub(super) fn adopt(&mut self, model: ModelId) -> Option<Handle> {
        let handle = self.handle.take_if(|_| self.ready)?;
        (self.ready, self.lost) = (false, 0);
        // Its queue is empty, so this cannot fail; if it does, somebody else starts one.
        handle.ask(Job::Adopt { model }).ok().map(|()| handle)
    }

    /// The spare, to be ended.
    pub(super) fn end(&mut self) -> Option<Handle> {
        self.wanted = false;
        self.handle.take()
    }

    /// It can be adopted now. False if it is not wanted any more.
    pub(super) fn is_ready(&mut self, number: u64) -> bool {
        self.ready = self.is(number);
        self.ready
    }

    /// It ended before anybody adopted it. False if somebody has.
    pub(super) fn is_lost(&mut self, number: u64) -> bool {
        if !self.is(number) {
            return false;
        }
        (self.handle, self.ready) = (None, false);
        let pause = FIRST_PAUSE.saturating_mul(1 << self.lost.min(16)).min(LONGEST_PAUSE);
        self.not_before = Some(clock::now() + pause);
        self.lost = self.lost.saturating_add(1);
        true
    }

    fn is(&self, number: u64) -> bool {
        self.handle.as_ref().is_some_and(|handle| handle.number == number)
    }

    fn info(&self) -> Option<SpareInfo> {
        let runner = &self.handle.as_ref()?.runner;
        Some(SpareInfo { pid: runner.pid(), ready: self.ready, memory: runner.memory(), lost: self.lost })
    }
}

/// When a spare should be started, if there should be one.
fn due(inner: &Inner, now: Instant) -> Option<Instant> {
    let state = inner.read();
    let missing = inner.config.spare && state.spare.wanted && state.spare.handle.is_none() && !state.closed;
    // While somebody waits for a load, nothing else is started. Its end wakes the watch.
    (missing && inner.loading.load(Ordering::Acquire) == 0).then(|| state.spare.not_before.unwrap_or(now))
}

/// Starts a spare if it is time. Otherwise, when it will be.
pub(super) fn tend(inner: &Arc<Inner>, now: Instant) -> Option<Instant> {
    let at = due(inner, now)?;
    if at > now {
        return Some(at);
    }
    let mut state = inner.write();
    if state.closed {
        return None;
    }
    match keeper::start_spare(inner) {
        Ok(handle) => (state.spare.handle, state.spare.ready) = (Some(handle), false),
        Err(error) => {
            tracing::warn!(%error, "no spare runner can be started");
            state.spare.not_before = Some(now + LONGEST_PAUSE);
        }
    }
    None
}

/// A load that somebody waits for.
pub(super) struct Loading(Weak<Inner>);

impl Loading {
    pub(super) fn start(inner: &Arc<Inner>) -> Self {
        inner.loading.fetch_add(1, Ordering::AcqRel);
        Self(Arc::downgrade(inner))
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let Some(inner) = self.0.upgrade() else { return };
        if inner.loading.fetch_sub(1, Ordering::AcqRel) == 1 {
            inner.watch.wake();
        }
    }
}

/// The same load once more.
pub(super) fn again(spec: &LoadSpec) -> Result<LoadSpec, EngineError> {
    let artefact = spec.artefact.try_clone().map_err(EngineError::system("keep an artefact open"))?;
    let LoadSpec { variant, model, artefact: _, settings, lanes, memory_limit, expect, shown } = spec;
    Ok(LoadSpec {
        variant: *variant,
        model: *model,
        artefact,
        settings: settings.clone(),
        lanes: *lanes,
        memory_limit: *memory_limit,
        expect: expect.clone(),
        shown: *shown,
    })
}

impl ProcessEngine {
    /// The runner that waits for a model, if there is one.
    pub fn spare(&self) -> Option<SpareInfo> {
        self.inner.read().spare.info()
    }
}

impl Keeper {
    /// Starts the runner and waits for a model; then goes on like any other.
    pub(super) fn run_spare(mut self, jobs: &Receiver<Job>) {
        let lost = |cause: &str| {
            let lost = self.inner.write().spare.is_lost(self.number);
            if lost {
                tracing::warn!(cause, "a spare runner ended");
                self.inner.watch.wake();
            }
            lost
        };
        // On a machine that is busy throughout, what waits for an idle moment may wait for ever.
        let config = &self.inner.config;
        let begun = self.begin(Gently::Idle, config.load_patience());
        let mut process = match begun.or_else(|_| self.begin(Gently::Nice, config.load_limit())) {
            Ok(process) => process,
            Err(error) => {
                lost(&error.to_string());
                return;
            }
        };
        if !self.inner.write().spare.is_ready(self.number) {
            return;
        }
        let alive = loop {
            match process.listen(Some(self.bell.as_fd()), None) {
                Heard::Called => {
                    let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
                    break true;
                }
                Heard::Nothing => {}
                Heard::Said(_) | Heard::Ended => break false,
            }
        };
        if !alive {
            let cause = process.end();
            if lost(&cause) {
                return;
            }
        }
        // Nothing else comes first; nothing comes at all when the engine shuts down.
        let Ok(Job::Adopt { model }) = jobs.try_recv() else { return };
        self.model = model;
        if alive {
            return self.run_with(process, jobs);
        }
        // It ended at the very moment that it was needed.
        self.run(jobs);
    }
}
