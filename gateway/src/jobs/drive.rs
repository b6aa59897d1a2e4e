//! One job: inputs are taken from the store, tried as the pace allows, and their ends written down some at a time.

use super::ends::Ends;
use super::goals::JobGoals;
use super::one::{Attempt, Came, Why};
use super::pacer::{Pacer, Turn};
use super::slow::{CRASHES, Slow};
use crate::core::Core;
use crate::errors::ApiError;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use modelless_decision::pace::is_pressed;
use modelless_store::{JOB_INPUTS_AT_ONCE, Job, JobEnd, JobInput, JobOutput, Store, UnixMicros};
use modelless_types::{JobState, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What is taken is this gateway's for so long, lengthened as long as it lives.
const LEASE: Duration = Duration::from_secs(20);
const RENEW: Duration = Duration::from_secs(5);
/// Inputs are taken so many at a time, and no more than so many bytes.
const TAKE: (u32, u32) = (16, 512);
const TAKE_BYTES: u64 = 8 << 20;
/// Others have what is left, or the store did not answer: so long until it is looked at again.
const LOOK: Duration = Duration::from_secs(1);
/// An input that fails where it is run is tried so often, and for so long: perhaps it is not the input.
const TRIES: u32 = 5;
const TRIED_FOR: Duration = Duration::from_mins(1);
/// Nothing met the job's goals for so long: nothing will.
const IN_VAIN: Duration = Duration::from_mins(1);
/// While other jobs wait one gives way that nothing came of for so long.
const STUCK: Duration = Duration::from_secs(30);

type Tried = Pin<Box<dyn Future<Output = (JobInput, Came)> + Send>>;

pub(super) struct Drive {
    core: Arc<Core>,
    store: Arc<dyn Store>,
    holder: Arc<str>,
    job: Job,
    goals: JobGoals,
    pacer: Arc<Pacer>,
    turn: Turn,
    slow: Slow,
    waiting: VecDeque<JobInput>,
    tried: FuturesUnordered<Tried>,
    /// Places of all that were taken and are not written down as ended.
    mine: BTreeSet<u32>,
    ends: Ends,
    /// How often inputs have failed where they were run, and since when.
    tries: BTreeMap<u32, (u32, Instant)>,
    /// Since when nothing met its goals, and why.
    in_vain: Option<(Instant, String)>,
    /// When an input last ended here, or it began.
    moved: Instant,
    take_at: Instant,
    renew_at: Instant,
    pressed: bool,
}

/// Why work on a job ends here.
enum Over {
    /// It has ended, or others see to the rest.
    Done,
    /// It cannot go on.
    Failed(String),
    /// Nothing comes of it now, and other jobs wait.
    Stuck,
}

/// How a gateway left a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    Done,
    /// Nothing came of it; others first.
    Stuck,
}

/// Works on a job until it has ended or this gateway does.
pub(super) async fn drive(
    core: Arc<Core>,
    store: Arc<dyn Store>,
    holder: Arc<str>,
    job: Job,
    stop: CancellationToken,
) -> Hold {
    let id = job.id;
    let goals = match serde_json::from_str::<JobGoals>(&job.goals) {
        Ok(goals) => goals,
        Err(error) => {
            tracing::error!(job = %id, %error, "the goals of a job cannot be read; this is a bug");
            fail(&*store, &job, "its goals cannot be read").await;
            return Hold::Stuck;
        }
    };
    let pacer = core.jobs.pacer(job.task);
    let (now, turn) = (Instant::now(), pacer.join());
    let mut drive = Drive {
        core,
        store,
        holder,
        job,
        goals,
        pacer,
        turn,
        slow: Slow::default(),
        waiting: VecDeque::new(),
        tried: FuturesUnordered::new(),
        mine: BTreeSet::new(),
        ends: Ends::default(),
        tries: BTreeMap::new(),
        in_vain: None,
        moved: now,
        take_at: now,
        renew_at: now + RENEW,
        pressed: false,
    };
    match drive.work(&stop).await {
        Over::Done => {
            drive.leave().await;
            Hold::Done
        }
        Over::Stuck => {
            drive.leave().await;
            Hold::Stuck
        }
        Over::Failed(why) => {
            drive.write_all().await;
            fail(&*drive.store, &drive.job, &why).await;
            Hold::Done
        }
    }
}

async fn fail(store: &dyn Store, job: &Job, why: &str) {
    tracing::warn!(job = %job.id, why, "a job cannot go on");
    if let Err(error) = store.offline().end_job(job.id, JobState::Failed, why, unix_now()).await {
        tracing::warn!(job = %job.id, %error, "that a job cannot go on could not be written down; it is tried again");
    }
}

pub(super) fn unix_now() -> UnixMicros {
    UnixMicros::of(SystemTime::now())
}

impl Drive {
    async fn work(&mut self, stop: &CancellationToken) -> Over {
        let core = Arc::clone(&self.core);
        let mut changed = core.jobs.changed.subscribe();
        let pacer = Arc::clone(&self.pacer);
        loop {
            if stop.is_cancelled() || core.is_draining() {
                return Over::Done;
            }
            let freed = pacer.freed();
            let pause = match self.begin() {
                Ok(pause) => pause,
                Err(over) => return over,
            };
            let now = Instant::now();
            let idle = self.waiting.is_empty() && self.tried.is_empty();
            if self.ends.are_due(now, idle) && !self.write().await {
                return Over::Done;
            }
            let takes = self.waiting.is_empty() && now >= self.take_at && !self.ends.are_enough();
            if takes && !self.take().await {
                return Over::Done;
            }
            if takes && !self.waiting.is_empty() {
                continue; // which begins them
            }
            if now - self.moved >= STUCK && core.jobs.is_crowded() && !self.is_deciding(now) {
                return Over::Stuck;
            }
            if now >= self.renew_at {
                if !self.renew().await {
                    return Over::Done;
                }
                if let Some(over) = self.out_of_room().await {
                    return over;
                }
            }
            let wake = self.wake(pause, now);
            tokio::select! {
                () = stop.cancelled() => return Over::Done,
                Some((input, came)) = self.tried.next(), if !self.tried.is_empty() => {
                    if let Some(over) = self.came(input, came) {
                        return over;
                    }
                }
                () = freed, if !self.waiting.is_empty() && pause.is_none() => {}
                _ = changed.changed() => {
                    // Perhaps it was cancelled.
                    self.renew_at = Instant::now();
                }
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Tries as many as the pace allows; when to try the next, where that is not when one has ended.
    fn begin(&mut self) -> Result<Option<Instant>, Over> {
        let pause = self.slow.until(Instant::now());
        if self.waiting.is_empty() || self.ends.are_enough() || pause.is_some() {
            self.turn.pause();
            return Ok(pause.or(self.ends.at()));
        }
        let begun = self.begin_some();
        if !matches!(begun, Ok(None)) {
            self.turn.pause();
        }
        begun
    }

    fn begin_some(&mut self) -> Result<Option<Instant>, Over> {
        let Some(caller) = self.core.gate.caller(self.job.tenant, self.job.app) else {
            return self.nothing("the application that submitted it is not there any more");
        };
        let view = self.core.view_of(&caller);
        let Ok(task) = view.task(&self.job.task_name) else {
            return self.nothing("its task is not there any more");
        };
        if task.task.id != self.job.task {
            return self.nothing("its task was removed, and another has its name");
        }
        let goals = match self.goals.resolved(task, (&caller.policies, self.pressed)) {
            Ok(goals) => goals,
            Err(error) => return self.nothing(&error.message),
        };
        let attempt = Attempt {
            core: Arc::clone(&self.core),
            view: Arc::clone(&view),
            caller,
            task: self.job.task_name.as_str().into(),
            goals,
            space: self.goals.space,
        };
        while let Some(input) = self.waiting.pop_front() {
            let now = self.core.driver.clock().now();
            match self.turn.enter(now) {
                Ok(pass) => {
                    let attempt = attempt.clone();
                    self.tried.push(Box::pin(async move {
                        let came = attempt.at(&input, pass).await;
                        (input, came)
                    }));
                }
                Err(until) => {
                    self.waiting.push_front(input);
                    return Ok(until.map(|until| Instant::now() + from(now, until)));
                }
            }
        }
        Ok(None)
    }

    /// It cannot go on, unless that was only for a while: a catalogue is read anew about once a second.
    fn nothing(&mut self, why: &str) -> Result<Option<Instant>, Over> {
        let now = Instant::now();
        let (since, _) = self.in_vain.get_or_insert_with(|| (now, why.to_owned()));
        if now - *since >= IN_VAIN { Err(Over::Failed(why.to_owned())) } else { Ok(Some(now + LOOK)) }
    }

    fn came(&mut self, input: JobInput, came: Came) -> Option<Over> {
        match came {
            Came::Ended(end) => {
                self.in_vain = None;
                let crashed = matches!(&end, JobEnd::Failure { reason, .. } if reason == "input_crashed");
                if matches!(end, JobEnd::Answer { .. }) {
                    self.slow.went_well();
                }
                self.end(input, end);
                if crashed && self.slow.crashed(Instant::now()) {
                    return Some(Over::Failed(format!(
                        "its inputs crash the model that answers them, {CRASHES} in a row: they, or the model, are not as they should be"
                    )));
                }
            }
            Came::OtherSpace => {
                let why = "its task answers in another output space now, and answers of two cannot be compared; submit what is \
                           left as a job of its own";
                return Some(Over::Failed(why.to_owned()));
            }
            Came::Again { why, kind } => return self.again(input, why, kind),
        }
        None
    }

    fn again(&mut self, input: JobInput, why: ApiError, kind: Why) -> Option<Over> {
        let now = Instant::now();
        if kind == Why::Goals {
            let (since, _) = self.in_vain.get_or_insert_with(|| (now, why.message.clone()));
            if now - *since >= IN_VAIN {
                return Some(Over::Failed(why.message));
            }
        } else {
            self.in_vain = None;
        }
        if !matches!(kind, Why::NoRoom | Why::TooFew) {
            self.slow.came_to_nothing(now);
        }
        if kind != Why::Trouble {
            self.waiting.push_front(input);
            return None;
        }
        let (tries, since) = self.tries.entry(input.at).or_insert((0, now));
        *tries += 1;
        if *tries >= TRIES && now - *since >= TRIED_FOR {
            let (reason, message) = (why.reason.to_owned(), why.message);
            self.end(input, JobEnd::Failure { reason, message });
        } else {
            self.waiting.push_back(input);
        }
        None
    }

    fn end(&mut self, input: JobInput, end: JobEnd) {
        self.tries.remove(&input.at);
        self.moved = Instant::now();
        self.ends.push(self.moved, JobOutput { at: input.at, name: input.name, end, ended: unix_now() });
    }

    /// Whether it will be known soon that it, or one of its inputs, has failed. Who begins anew would not know since when it has.
    fn is_deciding(&self, now: Instant) -> bool {
        self.in_vain.is_some() || self.tries.values().any(|(_, since)| now - *since < 2 * TRIED_FOR)
    }

    /// Writes down some of what has ended. Whether there is more to do.
    async fn write(&mut self) -> bool {
        let Some((written, job)) = self.ends.write(&*self.store, self.job.id).await else { return true };
        for at in written {
            self.mine.remove(&at);
        }
        self.know(job)
    }

    /// Writes down all that has ended, unless the store does not take it.
    async fn write_all(&mut self) {
        while !self.ends.is_empty() {
            let Some((written, _)) = self.ends.write(&*self.store, self.job.id).await else { return };
            for at in written {
                self.mine.remove(&at);
            }
        }
    }

    /// Takes more. Whether there is more to do.
    async fn take(&mut self) -> bool {
        let now = unix_now();
        let most = self.turn.window().saturating_mul(2).clamp(TAKE.0, TAKE.1);
        let taken = self
            .store
            .offline()
            .take_job_inputs(self.job.id, &self.holder, (now, after(now, LEASE)), (most, TAKE_BYTES))
            .await;
        match taken {
            Ok(taken) if taken.is_empty() => {
                // What is left is here, or others have it.
                self.take_at = Instant::now() + LOOK;
                !self.tried.is_empty() || !self.ends.is_empty() || self.look().await
            }
            Ok(taken) => {
                self.mine.extend(taken.iter().map(|input| input.at));
                self.waiting.extend(taken);
                true
            }
            Err(error) => {
                tracing::warn!(job = %self.job.id, %error, "no inputs of a job could be taken; it is tried again");
                self.take_at = Instant::now() + LOOK;
                true
            }
        }
    }

    /// Lengthens the time for which what was taken is this gateway's. Whether there is more to do.
    async fn renew(&mut self) -> bool {
        self.renew_at = Instant::now() + RENEW;
        let (mine, until) = (self.mine(), after(unix_now(), LEASE));
        for some in mine.chunks(JOB_INPUTS_AT_ONCE) {
            let Err(error) =
                self.store.offline().keep_job_inputs(self.job.id, &self.holder, until, some.to_vec()).await
            else {
                continue;
            };
            tracing::warn!(job = %self.job.id, %error, "a job's inputs could not be held on to; another gateway may take them");
        }
        self.look().await
    }

    /// Answers may be larger than inputs: why it cannot go on, if its tenant's jobs have come to more than they may.
    async fn out_of_room(&mut self) -> Option<Over> {
        let limit = self.core.config.max_job_bytes;
        let bytes = self.store.offline().job_bytes(self.job.tenant).await.ok()?;
        (bytes > limit).then(|| {
            Over::Failed(format!(
                "there is no room for more answers: the jobs of its tenant have come to {bytes} bytes, at most {limit} are kept; fetch and \
                 remove jobs that have ended, then submit what is left"
            ))
        })
    }

    async fn look(&mut self) -> bool {
        match self.store.offline().job(self.job.id).await {
            Ok(Some(job)) => self.know(job),
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(job = %self.job.id, %error, "a job could not be looked at; it is tried again");
                true
            }
        }
    }

    /// Whether there is more to do.
    fn know(&mut self, job: Job) -> bool {
        self.job = job;
        let Job { state, deadline, started, done, failed, inputs, .. } = &self.job;
        if let (Some(deadline), Some(started)) = (deadline, started) {
            let ended = done + failed;
            let pressed =
                is_pressed(unix_now().0, deadline.0, started.0, (ended, inputs.saturating_sub(ended)));
            if pressed != self.pressed {
                tracing::info!(job = %self.job.id, pressed, "whether a job's inputs go as ordinary queries, for want of time");
            }
            self.pressed = pressed;
        }
        *state == JobState::Running
    }

    fn mine(&self) -> Vec<u32> {
        self.mine.iter().copied().collect()
    }

    fn wake(&self, pause: Option<Instant>, now: Instant) -> Instant {
        let takes = self.waiting.is_empty() && !self.ends.are_enough();
        let take = if takes { self.take_at } else { now + LOOK };
        let all = [Some(self.renew_at), self.ends.at(), Some(take), pause];
        let next = all.into_iter().flatten().min().unwrap_or(now + LOOK);
        // Nothing here is worth turning in circles for.
        next.max(now + Duration::from_millis(1))
    }

    /// Writes down what has ended, and gives back what has not.
    async fn leave(&mut self) {
        self.write_all().await;
        self.tried.clear();
        for some in self.mine().chunks(JOB_INPUTS_AT_ONCE) {
            let Err(error) =
                self.store.offline().give_back_job_inputs(self.job.id, &self.holder, some.to_vec()).await
            else {
                continue;
            };
            tracing::warn!(job = %self.job.id, %error, "inputs of a job could not be given back; another gateway takes them soon");
        }
    }
}

fn after(now: UnixMicros, time: Duration) -> UnixMicros {
    UnixMicros(now.0.saturating_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX)))
}

fn from(now: Time, until: Time) -> Duration {
    Duration::from_micros((until - now).0).max(Duration::from_millis(1))
}
