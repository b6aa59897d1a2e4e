//! One thread for each runner: starts it, asks it to load and unload, listens to it, reaps it, tells of its death.
//!
//! A runner ends with its last variant. It is killed rather than asked to leave: it has nothing to save, and
//! nothing that it does on its way out can go wrong.

use super::access::{self, Access};
use super::behind;
use super::lane::{Lane, Runner};
use super::spawn::{Heard, Process};
use super::{Inner, ProcessConfig, Seat};
use crate::clock;
use crate::control::{Ask, Gently, Say};
use crate::prompt::take_usual_turns;
use crate::seam::{EngineError, EngineEvent, Freed, LoadSpec, Loaded, says_memory};
use crate::shm::Mapping;
use crate::slot::{Layout, Stretch};
use modelless_types::{Bytes, Micros, ModelId, TensorSpec, VariantId};
use rustix::event::EventfdFlags;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

use super::lock;

/// Requests that wait for a runner to be done with another.
const JOBS: usize = 32;

/// Where nothing was run for so long nobody is taken to be disturbed by the first run of what loads.
const LATELY: Duration = Duration::from_millis(250);

/// So many of the batches that a runner died with are named in the log.
const TOLD: usize = 16;

/// What is asked of a runner.
pub(super) enum Job {
    /// To a spare, first of all: what it is for from now on.
    Adopt {
        model: ModelId,
    },
    Load {
        spec: Box<LoadSpec>,
        gently: bool,
        since: Instant,
        reply: oneshot::Sender<Result<Loaded, EngineError>>,
    },
    Unload {
        variant: VariantId,
        reply: oneshot::Sender<Result<Freed, EngineError>>,
    },
}

/// A keeper, from outside.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) runner: Arc<Runner>,
    pub(super) number: u64,
    pub(super) from_spare: bool,
    jobs: SyncSender<Job>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    pub(super) fn ask(&self, job: Job) -> Result<(), EngineError> {
        self.jobs.try_send(job).map_err(|_| EngineError::Busy("too many requests wait for this runner"))?;
        self.ring();
        Ok(())
    }

    /// Ends the runner. The thread is to be joined.
    pub(super) fn end(mut self) -> Option<JoinHandle<()>> {
        self.runner.kill("the engine shuts down");
        let thread = self.thread.take();
        let bell = Arc::clone(&self.bell);
        drop(self);
        let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
        thread
    }

    fn ring(&self) {
        // It can only fail when 2^64 rings have not been heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// Starts a keeper, which starts its runner when it gets to it.
/// Its runner may reach that server, if one is named.
pub(super) fn start(
    inner: &Arc<Inner>,
    model: ModelId,
    server: Option<String>,
) -> Result<Handle, EngineError> {
    start_as(inner, Some(model), server, format!("keeper-{}", model.0))
}

/// Starts a keeper that starts its runner and waits for a model.
pub(super) fn start_spare(inner: &Arc<Inner>) -> Result<Handle, EngineError> {
    start_as(inner, None, None, "keeper-spare".to_owned())
}

fn start_as(
    inner: &Arc<Inner>,
    model: Option<ModelId>,
    server: Option<String>,
    name: String,
) -> Result<Handle, EngineError> {
    let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let bell = Arc::new(bell.map_err(|error| EngineError::system("make an eventfd")(error.into()))?);
    let (sender, jobs) = sync_channel(JOBS);
    let (runner, number) = (Arc::new(Runner::default()), inner.number());
    let keeper = Keeper {
        inner: Arc::clone(inner),
        model: model.unwrap_or(ModelId(0)),
        number,
        server,
        runner: Arc::clone(&runner),
        bell: Arc::clone(&bell),
        readers: Vec::new(),
        resident: Vec::new(),
        allowed: BTreeMap::new(),
        stuck: Cell::new(None),
    };
    let thread = std::thread::Builder::new()
        .name(name)
        .spawn(move || {
            // Starting a process and loading a model are long pieces of work that need not come first.
            take_usual_turns();
            match model {
                Some(_) => keeper.run(&jobs),
                None => keeper.run_spare(&jobs),
            }
        })
        .map_err(EngineError::system("start a thread"))?;
    let from_spare = model.is_none();
    Ok(Handle { runner, number, from_spare, jobs: sender, bell, thread: Some(thread) })
}

pub(super) struct Keeper {
    pub(super) inner: Arc<Inner>,
    pub(super) model: ModelId,
    pub(super) number: u64,
    /// What its runner reaches in place of a library that it opens.
    server: Option<String>,
    pub(super) runner: Arc<Runner>,
    pub(super) bell: Arc<OwnedFd>,
    readers: Vec<JoinHandle<()>>,
    resident: Vec<VariantId>,
    /// What their loads said that the runner may hold.
    pub(super) allowed: BTreeMap<VariantId, Option<Bytes>>,
    /// The time within which it did not answer.
    stuck: Cell<Option<Duration>>,
}

/// Why a keeper stops.
enum Stop {
    /// The last variant was unloaded, or the engine shuts down.
    Planned,
    /// The runner ended, or had to be ended; a job that it was at is yet to be answered.
    Died(Option<Box<Job>>),
}

impl Keeper {
    pub(super) fn run(self, jobs: &Receiver<Job>) {
        match self.begin(Gently::Not, self.inner.config.load_limit()) {
            Ok(process) => self.run_with(process, jobs),
            Err(error) => {
                self.forget();
                refuse(jobs, &error);
            }
        }
    }

    /// Starts the runner and hears that it is ready.
    pub(super) fn begin(&self, gently: Gently, limit: Duration) -> Result<Process, EngineError> {
        let mut process = match &self.server {
            Some(server) => {
                let config = ProcessConfig { library: server.into(), ..self.inner.config.clone() };
                Process::spawn(&config, gently)
            }
            None => Process::spawn(&self.inner.config, gently),
        }?;
        self.runner.started(process.pid(), process.pidfd());
        let (version, confinement) = process.hello(limit)?;
        if self.inner.config.gpu {
            for hole in confinement.warnings() {
                tracing::warn!(model = %self.model, "a model on a GPU: {hole}");
            }
        }
        *lock(&self.inner.confinement) = Some(confinement);
        tracing::debug!(model = %self.model, pid = process.pid(), version, "a runner started");
        Ok(process)
    }

    pub(super) fn run_with(mut self, mut process: Process, jobs: &Receiver<Job>) {
        self.runner.allow(self.inner.config.memory_limit);
        let stop = self.serve(&mut process, jobs);
        let ended = process.end();
        let ours = self.runner.why_killed();
        let outside = ours.is_none() && process.killed_by_others();
        let cause = ours.unwrap_or_else(|| self.name_memory(ended));
        let hung = lock(&self.runner.lanes).iter().any(|lane| lane.hung());
        self.forget();
        if matches!(stop, Stop::Died(_)) && !self.resident.is_empty() && !self.inner.read().closed {
            let batches: Vec<u64> =
                lock(&self.runner.lanes).iter().flat_map(|lane| lane.tickets()).take(TOLD).collect();
            tracing::warn!(model = %self.model, ?batches, cause, "a runner died");
            let variants = std::mem::take(&mut self.resident);
            let died = EngineEvent::RunnerDied { model: self.model, variants, cause: cause.clone(), hung };
            // Nobody listens any more when it fails, and then nobody misses it.
            let _ = self.inner.events.blocking_send(died);
        }
        let lanes = std::mem::take(&mut *lock(&self.runner.lanes));
        for lane in &lanes {
            lane.close(&cause, outside);
        }
        for reader in self.readers.drain(..) {
            if reader.join().is_err() {
                tracing::error!("the reader of a lane panicked; this is a bug");
            }
        }
        let error = match self.stuck.get() {
            Some(limit) => EngineError::Stuck { model: self.model, limit },
            None => EngineError::Crashed { model: self.model, cause },
        };
        if let Stop::Died(Some(unanswered)) = stop {
            answer(*unanswered, &error);
        }
        refuse(jobs, &error);
    }

    /// No library says why there was no memory.
    fn name_memory(&self, cause: String) -> String {
        match self.may_hold() {
            Some(limit) if says_memory(&cause) => {
                format!("it wanted more memory than the {limit} that it may hold; {cause}")
            }
            _ => cause,
        }
    }

    /// Takes this runner out of the engine's books.
    fn forget(&self) {
        let mut state = self.inner.write();
        if state.runners.get(&self.model).is_some_and(|handle| handle.number == self.number) {
            state.runners.remove(&self.model);
        }
        state.variants.retain(|_, seat| !(seat.model == self.model && self.resident.contains(&seat.variant)));
    }

    /// One job after another, until the runner is not needed any more or not there any more.
    fn serve(&mut self, process: &mut Process, jobs: &Receiver<Job>) -> Stop {
        let mut next = None;
        loop {
            if self.runner.why_killed().is_some() {
                return Stop::Died(next.map(Box::new));
            }
            if let Some(job) = next.take().or_else(|| jobs.try_recv().ok()) {
                match self.work(process, job, jobs) {
                    Ok(other) => next = other,
                    Err(stop) => return stop,
                }
                continue;
            }
            if self.resident.is_empty() {
                match self.retire(jobs) {
                    None => return Stop::Planned,
                    other => next = other,
                }
                continue;
            }
            match process.listen(Some(self.bell.as_fd()), None) {
                Heard::Called => {
                    let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
                }
                Heard::Said(said) => {
                    tracing::error!(?said, "a runner answered what it was not asked");
                    return Stop::Died(None);
                }
                Heard::Ended | Heard::Nothing => return Stop::Died(None),
            }
        }
    }

    /// Leaves the engine's books, unless a job has come meanwhile: that is returned. Jobs are given under the
    /// same lock, so none is lost.
    fn retire(&self, jobs: &Receiver<Job>) -> Option<Job> {
        let mut state = self.inner.write();
        let job = jobs.try_recv().ok();
        if job.is_none() && state.runners.get(&self.model).is_some_and(|handle| handle.number == self.number)
        {
            state.runners.remove(&self.model);
        }
        job
    }

    /// Does one job; a further one if it came across it. An error ends the runner.
    fn work(&mut self, process: &mut Process, job: Job, jobs: &Receiver<Job>) -> Result<Option<Job>, Stop> {
        match job {
            // Taken before anything else.
            Job::Adopt { .. } => Ok(None),
            Job::Load { spec, gently, since, reply } => match self.load(process, &spec, gently, since) {
                Ok(loaded) => {
                    if reply.send(Ok(loaded)).is_err() {
                        // Whoever asked has gone away and will never unload it.
                        self.inner.write().variants.remove(&spec.variant);
                        self.unload(process, spec.variant).map_err(|_| Stop::Died(None))?;
                    }
                    Ok(None)
                }
                Err(Lost::Not(error)) => {
                    if !self.resident.contains(&spec.variant) {
                        self.allowed.remove(&spec.variant);
                        self.allow();
                        self.bound(process);
                    }
                    let _ = reply.send(Err(error));
                    Ok(None)
                }
                Err(Lost::Gone) => Err(Stop::Died(Some(Box::new(Job::Load { spec, gently, since, reply })))),
            },
            Job::Unload { variant, reply } => {
                let mut next = None;
                if self.resident == [variant] {
                    next = self.retire(jobs);
                    if next.is_none() {
                        let memory = self.runner.held();
                        self.resident.clear();
                        process.ease();
                        process.end();
                        let _ = reply.send(Ok(Freed { memory, process_ended: true, left: Bytes(0) }));
                        return Err(Stop::Planned);
                    }
                }
                match self.unload(process, variant) {
                    Ok(freed) => {
                        let _ = reply.send(Ok(freed));
                        Ok(next)
                    }
                    Err(Lost::Not(error)) => {
                        let _ = reply.send(Err(error));
                        Ok(next)
                    }
                    Err(Lost::Gone) => {
                        if let Some(next) = next {
                            answer(next, &EngineError::Busy("the runner of this model just died"));
                        }
                        Err(Stop::Died(Some(Box::new(Job::Unload { variant, reply }))))
                    }
                }
            }
        }
    }

    /// A load gives way to what is served, if anything is and the runner can: altogether, with its first run in it, where something is being run,
    /// and where nothing is it need not be waited for so long.
    fn way(&self, process: &Process, gently: bool) -> Gently {
        let can = process.gives_way() && !self.inner.left_behind.load(Ordering::Relaxed);
        if !(gently && can && self.inner.something_is_served()) {
            return Gently::Not;
        }
        if self.resident.is_empty() && self.inner.something_ran(LATELY) { Gently::Idle } else { Gently::Nice }
    }

    fn load(
        &mut self,
        process: &mut Process,
        spec: &LoadSpec,
        gently: bool,
        since: Instant,
    ) -> Result<Loaded, Lost> {
        let LoadSpec { variant, model, artefact, settings, lanes, memory_limit, expect, shown } = spec;
        let variant = *variant;
        if self.inner.read().variants.contains_key(&variant) {
            return Err(Lost::Not(EngineError::AlreadyLoaded(variant)));
        }
        self.open_lanes(process, *lanes)?;
        self.allowed.insert(variant, *memory_limit);
        self.allow();
        self.bound(process);
        // The process came for the first of its variants: what it took to get ready is that one's.
        let before = if self.resident.is_empty() { Bytes(0) } else { self.runner.held() };
        let gently = self.way(process, gently);
        let refused = |why| Lost::Not(EngineError::Refused { variant, why });
        let Access { token, roots } = access::of(&self.inner.config, artefact).map_err(refused)?;
        let ask = Ask::Load {
            variant: variant.0,
            settings: settings.clone(),
            lanes: *lanes,
            expect: expect.clone(),
            shown: *shown,
            gently,
            token,
        };
        let config = &self.inner.config;
        let limit = if gently == Gently::Idle { config.load_patience() } else { config.load_limit() };
        let beside: Vec<_> =
            std::iter::once(artefact.as_fd()).chain(roots.as_ref().map(AsFd::as_fd)).collect();
        let said = self.exchange_within(limit, process, &ask, &beside)?;
        let (inputs, outputs, fixed_batch, stretch, device) = match said {
            Say::Loaded { inputs, outputs, fixed_batch, stretch, device } => {
                (inputs, outputs, fixed_batch, stretch, device)
            }
            Say::Failed { why } => return Err(Lost::Not(EngineError::Refused { variant, why })),
            other @ (Say::Done | Say::Hello { .. }) => return Err(self.nonsense(&other)),
        };
        match self.attach(process, spec, (&inputs, &outputs), (fixed_batch, stretch.as_ref())) {
            Ok((layout, arenas)) => {
                self.look_behind(process.pid(), gently)?;
                let slots = Bytes(layout.arena_bytes() as u64 * u64::from(*lanes));
                let lanes: Vec<_> = lock(&self.runner.lanes).iter().cloned().zip(arenas).collect();
                let (model, load) = (*model, self.inner.number());
                let seat = Seat { model, variant, load, layout: Arc::new(layout), fixed_batch, lanes };
                self.resident.push(variant);
                self.inner.write().variants.insert(variant, Arc::new(seat));
                let memory = Bytes(self.runner.held().0.saturating_sub(before.0));
                let load_time = Micros(clock::micros(since.elapsed()));
                let stretches = stretch.is_some();
                Ok(Loaded { inputs, outputs, fixed_batch, stretches, memory, slots, load_time, device })
            }
            Err(Lost::Not(error)) => {
                self.exchange(process, &Ask::Unload { variant: variant.0 }, &[])?;
                Err(Lost::Not(error))
            }
            Err(lost) => Err(lost),
        }
    }

    /// What a load that gave way started must not go on giving way when it runs batches. A runner where something does is
    /// ended if nothing is served in it yet; the load is begun again in another, as one that gave way for too long.
    fn look_behind(&self, pid: u32, gently: Gently) -> Result<(), Lost> {
        let left = if gently == Gently::Not { Vec::new() } else { behind::left(pid) };
        if left.is_empty() {
            return Ok(());
        }
        self.inner.left_behind.store(true, Ordering::Relaxed);
        tracing::warn!(
            model = %self.model,
            threads = left.join(", "),
            "threads that a load started go on giving way; loads of this engine do not give way any more"
        );
        if !self.resident.is_empty() {
            return Ok(());
        }
        self.runner.kill("threads that run its batches would give way to everything else");
        self.stuck.set(Some(self.inner.config.load_patience()));
        Err(Lost::Gone)
    }

    /// Makes the slots of a loaded variant and hands them to the runner.
    fn attach(
        &self,
        process: &mut Process,
        spec: &LoadSpec,
        (inputs, outputs): (&[TensorSpec], &[TensorSpec]),
        (fixed_batch, stretch): (Option<u32>, Option<&Stretch>),
    ) -> Result<(Layout, Vec<Arc<Mapping>>), Lost> {
        let variant = spec.variant;
        let refused = |why| Lost::Not(EngineError::Refused { variant, why });
        let rows = fixed_batch.unwrap_or(spec.settings.max_batch);
        if rows > self.inner.config.max_batch {
            return Err(refused(format!(
                "it takes batches of exactly {rows}; at most {} are allowed here",
                self.inner.config.max_batch
            )));
        }
        let (strings, most) = (spec.settings.strings(), self.inner.config.max_arena.0);
        let layout = Layout::new(inputs, outputs, rows, strings, most);
        let layout = layout.and_then(|layout| layout.stretching(stretch)).map_err(refused)?;
        let layout = layout.exactly(fixed_batch.is_some());
        let system = |error| Lost::Not(EngineError::system("make shared memory")(error));
        let mut fds = Vec::new();
        let mut arenas = Vec::new();
        for _ in 0..spec.lanes {
            let (fd, arena) = Mapping::create("modelless-slots", layout.arena_bytes()).map_err(system)?;
            fds.push(fd);
            arenas.push(Arc::new(arena));
        }
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let ask = Ask::Attach { variant: variant.0, rows, slot_bytes: layout.slot_bytes };
        match self.exchange(process, &ask, &fds)? {
            Say::Done => Ok((layout, arenas)),
            Say::Failed { why } => Err(refused(why)),
            other @ (Say::Loaded { .. } | Say::Hello { .. }) => Err(self.nonsense(&other)),
        }
    }

    /// Lanes of the runner up to the number wanted, each with its reader.
    fn open_lanes(&mut self, process: &mut Process, wanted: u16) -> Result<(), Lost> {
        for number in 0..wanted {
            if lock(&self.runner.lanes).len() > usize::from(number) {
                continue;
            }
            let system = |error| Lost::Not(EngineError::system("open a lane")(error));
            let (lane, fd) = Lane::create(&self.runner, number).map_err(system)?;
            match self.exchange(process, &Ask::OpenLane { lane: number }, &[fd.as_fd()])? {
                Say::Done => {}
                other @ (Say::Failed { .. } | Say::Loaded { .. } | Say::Hello { .. }) => {
                    return Err(self.nonsense(&other));
                }
            }
            let reader = Arc::clone(&lane);
            let name = format!("lane-{}-{number}", self.model.0);
            // Once the runner serves a lane it must have a reader; without one the runner is of no use.
            match std::thread::Builder::new().name(name).spawn(move || reader.read()) {
                Ok(thread) => self.readers.push(thread),
                Err(error) => {
                    self.runner.kill(&format!("a thread for it could not be started: {error}"));
                    return Err(Lost::Gone);
                }
            }
            lock(&self.runner.lanes).push(lane);
        }
        Ok(())
    }

    fn unload(&mut self, process: &mut Process, variant: VariantId) -> Result<Freed, Lost> {
        let before = self.runner.held();
        self.resident.retain(|resident| *resident != variant);
        self.allowed.remove(&variant);
        self.allow();
        match self.exchange(process, &Ask::Unload { variant: variant.0 }, &[])? {
            Say::Done => {
                // Not before: it may need some to give some back.
                self.bound(process);
                let left = self.runner.held();
                Ok(Freed { memory: Bytes(before.0.saturating_sub(left.0)), process_ended: false, left })
            }
            other @ (Say::Failed { .. } | Say::Loaded { .. } | Say::Hello { .. }) => {
                Err(self.nonsense(&other))
            }
        }
    }

    /// Asks and waits for the answer.
    fn exchange(&self, process: &mut Process, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<Say, Lost> {
        self.exchange_within(self.inner.config.load_limit(), process, ask, fds)
    }

    fn exchange_within(
        &self,
        limit: Duration,
        process: &mut Process,
        ask: &Ask,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Say, Lost> {
        if process.ask(ask, fds).is_err() {
            return Err(Lost::Gone);
        }
        match process.listen(None, Some(clock::now() + limit)) {
            Heard::Said(said) => Ok(said),
            Heard::Ended | Heard::Called => Err(Lost::Gone),
            Heard::Nothing => {
                self.runner.kill("it did not answer in time");
                self.stuck.set(Some(limit));
                Err(Lost::Gone)
            }
        }
    }

    fn nonsense(&self, said: &Say) -> Lost {
        tracing::error!(?said, model = %self.model, "a runner answered something else than it was asked");
        self.runner.kill("it broke the control protocol");
        Lost::Gone
    }
}

/// How a request failed.
enum Lost {
    /// The runner is as it was.
    Not(EngineError),
    /// The runner is gone or has to go; the answer is how it ended, given when it has.
    Gone,
}

fn answer(job: Job, error: &EngineError) {
    match job {
        Job::Adopt { .. } => {}
        Job::Load { reply, .. } => drop(reply.send(Err(error.clone()))),
        Job::Unload { reply, .. } => drop(reply.send(Err(error.clone()))),
    }
}

fn refuse(jobs: &Receiver<Job>, error: &EngineError) {
    while let Ok(job) = jobs.try_recv() {
        answer(job, error);
    }
}
