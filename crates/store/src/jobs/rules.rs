//! What holds for offline jobs in every store: what may be kept of them, and how a job's own figures follow what became of its inputs.

use super::{JOB_BODY_MAX, JOB_INPUTS_AT_ONCE, JOB_INPUTS_MAX, Job, JobEnd, JobInput, JobOutput, NewJob};
use crate::check;
use crate::error::{Error, Result};
use crate::records::UnixMicros;
use modelless_types::{CostPer1k, JobId, JobState, Micros};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Longest name of an input: it may be the path of a file.
const INPUT_NAME_MAX: usize = 1_000;
/// Longest goals.
const GOALS_MAX: usize = 10_000;
/// What an input or output counts besides its bytes: its name, and what a row takes of a disk.
pub(crate) const ROW: u64 = 256;
/// Why a job ended that was left before all of its inputs had come.
pub(crate) const LEFT: &str = "its inputs did not all come in time";

impl NewJob {
    pub(crate) fn check(&self) -> Result<()> {
        if !self.name.is_empty() {
            check::name("job", &self.name)?;
        }
        if self.inputs == 0 || self.inputs > JOB_INPUTS_MAX {
            let why = format!("it has {} inputs; give it 1 to {JOB_INPUTS_MAX}", self.inputs);
            return Err(Error::invalid("job", why));
        }
        if self.goals.len() > GOALS_MAX {
            return Err(Error::invalid("job", format!("its goals are longer than {GOALS_MAX} bytes")));
        }
        check::json("job", &self.goals)?;
        check::number("price", self.estimate.map_or(0, |cost| cost.0))?;
        check::number("time", self.deadline.map_or(0, |at| at.0))?;
        check::number("time", self.made.0)
    }

    pub(crate) fn numbered(self, id: JobId, task_name: String) -> Job {
        let Self { name, tenant, app, task, goals, inputs, estimate, deadline, made } = self;
        Job {
            id,
            name,
            tenant,
            app,
            task,
            task_name,
            goals,
            state: JobState::Receiving,
            why: None,
            inputs,
            received: 0,
            done: 0,
            failed: 0,
            bytes: 0,
            kept: 0,
            device: Micros(0),
            cost: CostPer1k(0),
            estimate,
            deadline,
            made,
            started: None,
            ended: None,
        }
    }
}

impl Job {
    /// Whether these places are its own and inputs may come to them.
    pub(crate) fn receives(&self, inputs: &BTreeMap<u32, JobInput>) -> Result<()> {
        if self.state != JobState::Receiving {
            return Err(Error::JobNotReceiving { job: self.id, state: self.state });
        }
        let last = inputs.keys().next_back();
        let Some(beyond) = last.filter(|at| **at >= self.inputs) else { return Ok(()) };
        Err(Error::NoSuchInput { job: self.id, inputs: self.inputs, at: *beyond })
    }

    /// Counts inputs that came to places where there was none, if there is room for them beside the tenant's `others`.
    pub(crate) fn receive(
        &mut self,
        fresh: &BTreeMap<u32, JobInput>,
        (others, limit): (u64, u64),
    ) -> Result<()> {
        let bytes = self.bytes + fresh.values().map(|input| size(&input.body)).sum::<u64>();
        let received = self.received + u32::try_from(fresh.len()).unwrap_or(u32::MAX);
        let own = bytes + u64::from(received) * ROW;
        if others.saturating_add(own) > limit {
            return Err(Error::TooManyBytes { job: self.id, own, others, limit });
        }
        (self.bytes, self.received) = (bytes, received);
        Ok(())
    }

    /// What it counts against a bound in bytes.
    pub(crate) fn counts(&self) -> u64 {
        let rows = if self.state.ended() { self.done + self.failed } else { self.received };
        self.bytes + self.kept + u64::from(rows) * ROW
    }

    /// Starts it. Whether anything changed.
    pub(crate) fn start(&mut self, now: UnixMicros) -> Result<bool> {
        if self.started.is_some() {
            return Ok(false);
        }
        if self.state != JobState::Receiving {
            return Err(Error::JobNotReceiving { job: self.id, state: self.state });
        }
        if self.received < self.inputs {
            let (missing, inputs) = (self.inputs - self.received, self.inputs);
            return Err(Error::InputsMissing { job: self.id, missing, inputs });
        }
        self.state = JobState::Running;
        self.started = Some(now);
        Ok(true)
    }

    /// Ends it. Whether anything changed.
    pub(crate) fn end(&mut self, end: JobState, why: &str, now: UnixMicros) -> bool {
        if self.state.ended() {
            return false;
        }
        let mut why = why.to_owned();
        check::storable(&mut why);
        (self.state, self.why) = (end, Some(why));
        (self.ended, self.bytes) = (Some(now), 0);
        true
    }

    /// Whether inputs of it may end: not where it has ended itself.
    pub(crate) fn answers(&self) -> Result<bool> {
        if self.state == JobState::Receiving {
            return Err(Error::JobNotStarted { job: self.id });
        }
        Ok(self.state == JobState::Running)
    }

    /// Counts an input that just ended, with what its body had come to. With the last one the job is done.
    pub(crate) fn count(&mut self, output: &JobOutput, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.kept = kept(self.kept.saturating_add(output.bytes()));
        match &output.end {
            JobEnd::Answer { device, cost, .. } => {
                self.done += 1;
                self.device = Micros(kept(self.device.0.saturating_add(device.0)));
                self.cost = CostPer1k(kept(self.cost.0.saturating_add(cost.0)));
            }
            JobEnd::Failure { .. } => self.failed += 1,
        }
        if self.done + self.failed == self.inputs {
            self.state = JobState::Done;
            self.ended = Some(output.ended);
        }
    }

    pub(crate) fn remove(&self) -> Result<()> {
        if self.state.ended() { Ok(()) } else { Err(Error::JobNotEnded { job: self.id, state: self.state }) }
    }
}

impl JobOutput {
    /// What it counts against a bound in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.end {
            JobEnd::Answer { body, .. } => size(body),
            JobEnd::Failure { message, .. } => size(message.as_bytes()),
        }
    }
}

/// As large as both databases can keep it.
fn kept(value: u64) -> u64 {
    value.min(i64::MAX.unsigned_abs())
}

pub(crate) fn size(body: &[u8]) -> u64 {
    u64::try_from(body.len()).unwrap_or(u64::MAX)
}

/// Inputs by their places. One that is given twice must be the same both times.
pub(crate) fn given(job: JobId, inputs: Vec<JobInput>) -> Result<BTreeMap<u32, JobInput>> {
    at_once(inputs.len())?;
    let mut by_place = BTreeMap::new();
    for input in inputs {
        let refuse = |why: String| Err(Error::invalid("input", why));
        if input.name.is_empty()
            || input.name.len() > INPUT_NAME_MAX
            || input.name.chars().any(char::is_control)
        {
            let why = format!("the name of input {} must be 1 to {INPUT_NAME_MAX} bytes of text", input.at);
            return refuse(why);
        }
        input.media.iter().try_for_each(|media| check::name("content type", media))?;
        if input.body.len() > JOB_BODY_MAX {
            return refuse(format!("input {} is larger than {JOB_BODY_MAX} bytes", input.at));
        }
        match by_place.entry(input.at) {
            Entry::Vacant(place) => {
                place.insert(input);
            }
            Entry::Occupied(there) => same(job, there.get(), &input)?,
        }
    }
    Ok(by_place)
}

/// An input came to a place where there is one.
pub(crate) fn same(job: JobId, known: &JobInput, given: &JobInput) -> Result<()> {
    if known == given { Ok(()) } else { Err(Error::InputDiffers { job, at: given.at }) }
}

/// Outputs by their places, made storable instead of refused: what a failing model said must not keep its input from ending. Of one
/// place the first counts.
pub(crate) fn ends(ended: Vec<JobOutput>) -> Result<BTreeMap<u32, JobOutput>> {
    at_once(ended.len())?;
    let mut by_place = BTreeMap::new();
    for mut output in ended {
        check::number("time", output.ended.0)?;
        match &mut output.end {
            JobEnd::Answer { body, variant_name, device, cost, .. } => {
                if body.len() > JOB_BODY_MAX {
                    let why = format!("that of input {} is larger than {JOB_BODY_MAX} bytes", output.at);
                    return Err(Error::invalid("answer", why));
                }
                check::storable(variant_name);
                (device.0, cost.0) = (kept(device.0), kept(cost.0));
            }
            JobEnd::Failure { reason, message } => [reason, message].into_iter().for_each(check::storable),
        }
        by_place.entry(output.at).or_insert(output);
    }
    Ok(by_place)
}

pub(crate) fn at_once(many: usize) -> Result<()> {
    if many <= JOB_INPUTS_AT_ONCE {
        return Ok(());
    }
    Err(Error::invalid("list", format!("it has {many} inputs; give at most {JOB_INPUTS_AT_ONCE} at once")))
}

/// Whether somebody may end a job so.
pub(crate) fn an_end(end: JobState, now: UnixMicros) -> Result<()> {
    check::number("time", now.0)?;
    if matches!(end, JobState::Cancelled | JobState::Failed) {
        return Ok(());
    }
    let why = format!("a job is ended as cancelled or as failed, and not as {}", end.name());
    Err(Error::invalid("end of a job", why))
}

/// Of so many bytes each, in order: how many do not come to more than `most`, one at least.
pub(crate) fn within(sizes: impl IntoIterator<Item = u64>, most: u64) -> usize {
    let mut all = 0_u64;
    let fits = sizes.into_iter().enumerate().take_while(|(at, bytes)| {
        all = all.saturating_add(*bytes);
        *at == 0 || all <= most
    });
    fits.count()
}

/// So many of what was asked for as are given at once.
pub(crate) fn most(asked: u32) -> u32 {
    asked.min(u32::try_from(JOB_INPUTS_AT_ONCE).unwrap_or(u32::MAX))
}
