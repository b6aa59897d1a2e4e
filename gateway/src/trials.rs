//! Versions on trial, as this gateway sees them: which of its queries they answer, and how those and the others came out.
//!
//! Counting takes no lock, except for the query of each arm that is the first of a second (of `trial_beat_ms`): that one is compared with the last such one of
//! the other arm. Counts are told with every heartbeat, and are gone with the process.

use crate::core::Core;
use crate::pending::Outcome;
use crate::shadow::{Copied, Form, Held};
use crate::view::{TaskView, View};
use http::HeaderValue;
use modelless_decision::admission;
use modelless_decision::query::Class;
use modelless_decision::route::Ready;
use modelless_decision::trial::{Arm, ArmCounts, Came, Counts, LATENCIES, Latencies, OnTrial};
use modelless_live::{Role, TRIALS, Tried};
use modelless_store::{Catalog, TRIALS_AT_ONCE, Trial, UnixMicros};
use modelless_telemetry::TrialGauge;
use modelless_types::{AppId, Bytes, Goals, Micros, ModelId, Refusal, TaskId, TenantId, Time, TrialId};
use modelless_wire::Input;
use std::array;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A version that is in no memory is asked for again after so long.
const WAKE_AFTER: u64 = 10_000_000;
const _: () = assert!(TRIALS_AT_ONCE <= TRIALS, "all that run are told");

/// A trial that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) on: OnTrial,
    pub(crate) trial: Trial,
    /// Its name, as answers tell it.
    pub(crate) header: HeaderValue,
    /// Of each arm one query in so long is compared.
    beat: Micros,
    arms: [Live; 2],
    compared: Mutex<Compared>,
    woken: AtomicU64,
}

/// What is counted of an arm.
#[derive(Debug, Default)]
struct Live {
    /// The last second of which a query is compared, counted from 1.
    beat: AtomicU64,
    answered: AtomicU64,
    late: AtomicU64,
    failed: AtomicU64,
    unanswered: AtomicU64,
    right: AtomicU64,
    wrong: AtomicU64,
    latencies: [AtomicU64; LATENCIES],
}

/// What was compared, and what waits for its like of the other arm.
#[derive(Debug, Default)]
struct Compared {
    /// Of these only pairs.
    counts: Counts,
    came: [Option<Came>; 2],
    right: [Option<bool>; 2],
}

const fn at(arm: Arm) -> usize {
    match arm {
        Arm::Candidate => 0,
        Arm::Other => 1,
    }
}

impl Live {
    fn count(&self, came: Came) {
        let one = |of: &AtomicU64| of.fetch_add(1, Ordering::Relaxed);
        match came {
            Came::Answered { total, late } => {
                one(&self.answered);
                if late {
                    one(&self.late);
                }
                one(&self.latencies[Latencies::step(total)]);
            }
            Came::Failed => drop(one(&self.failed)),
            Came::Unanswered => drop(one(&self.unanswered)),
        }
    }

    fn counted(&self) -> ArmCounts {
        let of = |of: &AtomicU64| of.load(Ordering::Relaxed);
        ArmCounts {
            answered: of(&self.answered),
            late: of(&self.late),
            failed: of(&self.failed),
            unanswered: of(&self.unanswered),
            right: of(&self.right),
            wrong: of(&self.wrong),
            latencies: Latencies(array::from_fn(|step| of(&self.latencies[step]))),
        }
    }
}

impl Running {
    fn new(trial: &Trial, beat: Micros) -> Self {
        Self {
            on: OnTrial {
                id: trial.id,
                candidate: trial.candidate,
                share: trial.share,
                shadow: trial.shadow,
            },
            trial: trial.clone(),
            header: crate::view::header(&trial.id.to_string()),
            beat,
            arms: Default::default(),
            compared: Mutex::default(),
            woken: AtomicU64::new(0),
        }
    }

    fn compared(&self) -> MutexGuard<'_, Compared> {
        self.compared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a query of an arm is compared that comes now.
    fn is_compared(&self, arm: Arm, now: Time) -> bool {
        let beat = now.0 / self.beat.0.max(1) + 1;
        self.arms[at(arm)].beat.fetch_max(beat, Ordering::Relaxed) < beat
    }

    /// A copy of a query that was taken in.
    pub(crate) fn copies(
        self: &Arc<Self>,
        (class, form): (Class, Form),
        (tenant, app): (TenantId, AppId),
        (input, decoded, held): (Input, Bytes, Held),
        now: Time,
    ) -> Copied {
        let compared = self.is_compared(Arm::Other, now);
        Copied { of: Arc::clone(self), class, input, decoded, held, tenant, app, compared, form }
    }

    /// A copy and its original have ended, and their answers agree or not, as far as they can be compared.
    /// `alike` where their times can be compared.
    pub(crate) fn copied(
        &self,
        (copy, original, alike): (Came, Came, bool),
        compared: bool,
        agreed: Option<bool>,
    ) {
        for (arm, came) in [(Arm::Candidate, copy), (Arm::Other, original)] {
            self.arms[at(arm)].count(came);
        }
        let mut known = self.compared();
        match agreed {
            Some(true) => known.counts.agreed += 1,
            Some(false) => known.counts.differed += 1,
            None => {}
        }
        if compared {
            known.counts.pair_of(copy, original, alike);
        }
    }

    /// A query was taken in. Until something else is said it has not been waited for.
    pub(crate) fn takes(self: &Arc<Self>, arm: Arm, now: Time) -> Seen {
        let compared = self.is_compared(arm, now);
        Seen { of: Arc::clone(self), arm, compared, came: Some(Came::Unanswered) }
    }

    fn ended(&self, arm: Arm, compared: bool, came: Came) {
        self.arms[at(arm)].count(came);
        if !compared {
            return;
        }
        let mut known = self.compared();
        known.came[at(arm)] = Some(came);
        if let [Some(candidate), Some(other)] = known.came {
            known.came = [None; 2];
            known.counts.pair(candidate, other);
        }
    }

    /// Somebody said whether an answer was right.
    pub(crate) fn verdict(&self, arm: Arm, right: bool) {
        let counted = &self.arms[at(arm)];
        (if right { &counted.right } else { &counted.wrong }).fetch_add(1, Ordering::Relaxed);
        let mut known = self.compared();
        known.right[at(arm)] = Some(right);
        if let [Some(candidate), Some(other)] = known.right {
            known.right = [None; 2];
            known.counts.pair_verdicts(candidate, other);
        }
    }

    fn counted(&self) -> Counts {
        let [candidate, other] = [0, 1].map(|arm: usize| self.arms[arm].counted());
        Counts { candidate, other, ..self.compared().counts }
    }

    /// Nothing of it is in any memory, so nothing of it is asked: has a node load it, now and then.
    /// Each time another place is asked, for one may never manage.
    pub(crate) fn wake(&self, core: &Core, task: &TaskView, goals: &Goals, now: Time) {
        let last = self.woken.load(Ordering::Relaxed);
        let due = last == 0 || now.0 >= last + WAKE_AFTER;
        let mine =
            |last| self.woken.compare_exchange(last, now.0.max(1), Ordering::AcqRel, Ordering::Relaxed);
        if !due || mine(last).is_err() {
            return;
        }
        let pinned = Goals { model: Some(self.on.candidate), ..*goals };
        let admitted =
            core.driver.look(|router, _| admission::admit(router.snapshot(), task.task.id, &pinned));
        // No variant of it would do.
        let Ok(admitted) = admitted else { return };
        let mut cold = Vec::new();
        for node in core.nodes() {
            let status = node.status.borrow();
            let its = |offer: &&modelless_decision::route::Offer| {
                offer.task == task.task.id && admitted.class.admits.contains(offer.ordinal)
            };
            for offer in status.info.offers.iter().filter(its) {
                match offer.ready {
                    Ready::Resident | Ready::Loading { .. } => return,
                    Ready::Cold { .. } => cold.push((node.id, offer.ordinal)),
                }
            }
        }
        cold.sort_unstable();
        let turn = now.0 / WAKE_AFTER;
        let turn = turn.checked_rem(cold.len() as u64).and_then(|turn| usize::try_from(turn).ok());
        if let Some((node, ordinal)) = turn.map(|turn| cold[turn]) {
            core.wake(node, task.task.id, ordinal);
        }
    }
}

/// A query that counts for a trial. It is counted when this is dropped, as it stands then.
#[derive(Debug)]
pub(crate) struct Seen {
    of: Arc<Running>,
    pub(crate) arm: Arm,
    compared: bool,
    came: Option<Came>,
}

impl Seen {
    /// How it ended; nothing where that was not the version's doing.
    pub(crate) fn ended(&mut self, came: Option<Came>) {
        self.came = came;
    }

    /// Its answer could not be given after all.
    pub(crate) fn failed(&mut self) {
        self.came = Some(Came::Failed);
    }

    /// The trial that it was drawn for.
    pub(crate) fn drawn(&self) -> Option<&Running> {
        (self.arm == Arm::Candidate).then_some(&*self.of)
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if let Some(came) = self.came {
            self.of.ended(self.arm, self.compared, came);
        }
    }
}

/// What counts of a query that was not answered. A quota, a full queue, a load or a lost node say nothing of a version, and neither does one
/// that no node was given.
pub(crate) fn unanswered(outcome: &Outcome, sent: bool) -> Option<Came> {
    match outcome {
        Outcome::Answered(_) | Outcome::BadInput(..) => None,
        Outcome::Refused(refusal) => match refusal {
            Refusal::ModelError { .. } | Refusal::InputCrashed { .. } | Refusal::VariantFailed { .. } => {
                Some(Came::Failed)
            }
            Refusal::TooLate { .. } if !sent => None,
            Refusal::TooLate { .. } | Refusal::Cancelled => Some(Came::Unanswered),
            Refusal::FloorUnreachable { .. }
            | Refusal::LatencyUnreachable { .. }
            | Refusal::CostUnreachable { .. }
            | Refusal::PinUnusable { .. }
            | Refusal::NothingRunnable { .. }
            | Refusal::QueueFull { .. }
            | Refusal::BytesFull { .. }
            | Refusal::OverQuota
            | Refusal::Loading { .. }
            | Refusal::OutOfMemory { .. }
            | Refusal::Draining
            | Refusal::NodeLost => None,
        },
    }
}

/// What counts of an answer.
pub(crate) fn answered(total: Micros, bound: Micros) -> Came {
    Came::Answered { total, late: total > bound }
}

/// Trials that this gateway counts for.
#[derive(Debug)]
pub(crate) struct Trials {
    beat: Micros,
    running: Mutex<BTreeMap<TrialId, Arc<Running>>>,
}

impl Trials {
    pub(crate) fn new(beat: Micros) -> Self {
        Self { beat, running: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<TrialId, Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that run, and no others from now on.
    pub(crate) fn follow(&self, catalog: &Catalog) {
        let mut all = self.all();
        all.retain(|id, _| catalog.trials.iter().any(|trial| trial.id == *id));
        for trial in &catalog.trials {
            all.entry(trial.id).or_insert_with(|| Arc::new(Running::new(trial, self.beat)));
        }
    }

    /// The trial of a task, where what it compares is still there to be compared.
    pub(crate) fn of(&self, task: TaskId, defaults: &BTreeSet<ModelId>) -> Option<Arc<Running>> {
        let all = self.all();
        let running = all.values().find(|running| running.trial.task == task)?;
        let compared = defaults.contains(&running.trial.against) && !defaults.contains(&running.on.candidate);
        compared.then(|| Arc::clone(running))
    }

    /// What was counted here.
    pub(crate) fn told(&self) -> Vec<Tried> {
        let all = self.all();
        all.values().take(TRIALS).map(|one| Tried { trial: one.on.id, counts: one.counted() }).collect()
    }

    /// The same, for Prometheus.
    pub(crate) fn gauges(&self, view: &View) -> Vec<TrialGauge> {
        let of = |running: &Arc<Running>| {
            [Arm::Candidate, Arm::Other]
                .map(|arm| gauge(running, crate::gauges::of(view, running.trial.task), arm))
        };
        self.all().values().take(TRIALS).flat_map(of).collect()
    }
}

/// What was counted of one side, for Prometheus.
fn gauge(running: &Running, task: String, arm: Arm) -> TrialGauge {
    let counts = running.arms[at(arm)].counted();
    TrialGauge {
        task,
        trial: running.on.id.to_string(),
        arm: match arm {
            Arm::Candidate => "candidate",
            Arm::Other => "against",
        },
        outcomes: vec![
            // Those in time and those that were late, so that all of them add up.
            ("in_time", counts.answered.saturating_sub(counts.late)),
            ("late", counts.late),
            ("failed", counts.failed),
            ("unanswered", counts.unanswered),
        ],
    }
}

/// What all gateways counted of a trial, as far as they are known here.
pub(crate) fn counted(core: &Core, trial: TrialId) -> Counts {
    let members = core.members();
    let gateways = members.iter().filter(|member| member.role == Role::Gateway);
    let told: Vec<Tried> = if gateways.clone().next().is_none() {
        core.trials.told()
    } else {
        gateways.flat_map(|member| member.trials.iter().copied()).collect()
    };
    let mut all = Counts::default();
    told.iter().filter(|tried| tried.trial == trial).for_each(|tried| all.add(&tried.counts));
    all
}

/// Whether feedback on an answer counts for a trial: the one in which it was given.
pub(crate) fn counts_verdict(running: &Running, answered: UnixMicros) -> bool {
    answered >= running.trial.began.at
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_store::Signed;
    use modelless_types::{Share, TrialState};

    const BEAT: u64 = 1_000_000;

    fn running() -> Arc<Running> {
        let trial = Trial {
            id: TrialId(3),
            task: TaskId(1),
            name: "m".to_owned(),
            candidate: ModelId(2),
            version: 2,
            against: ModelId(1),
            against_version: 1,
            share: Share::from_ppm(50_000).unwrap(),
            shadow: false,
            lasts: Micros::from_secs(60),
            promote_when_good: false,
            forced: false,
            began: Signed::default(),
            state: TrialState::Running,
            ended: None,
        };
        Arc::new(Running::new(&trial, Micros(BEAT)))
    }

    fn took(ms: u64) -> Came {
        answered(Micros::from_millis(ms), Micros::from_millis(100))
    }

    #[test]
    fn one_query_of_each_arm_in_a_second_is_compared_and_all_are_counted() {
        let running = running();
        for second in 0..3 {
            for n in 0..10 {
                let now = Time(second * BEAT + n);
                running.takes(Arm::Candidate, now).ended(Some(took(if n == 0 { 200 } else { 1 })));
                running.takes(Arm::Other, now).ended(Some(took(10)));
            }
        }
        let counts = running.counted();
        assert_eq!((counts.candidate.answered, counts.candidate.late, counts.other.answered), (30, 3, 30));
        assert_eq!((counts.lateness.worse, counts.lateness.even), (3, 0), "the first of each second");
        assert_eq!((counts.latency.worse, counts.failures.even), (3, 3));
    }

    #[test]
    fn who_is_not_waited_for_counts_and_what_is_not_the_versions_doing_does_not() {
        let running = running();
        drop(running.takes(Arm::Candidate, Time(1))); // its client went away
        running.takes(Arm::Other, Time(1)).ended(Some(took(1)));
        running
            .takes(Arm::Candidate, Time(BEAT))
            .ended(unanswered(&Outcome::Refused(Refusal::OverQuota), true));
        let mut spoilt = running.takes(Arm::Candidate, Time(2 * BEAT));
        spoilt.ended(Some(took(1)));
        spoilt.failed();
        drop(spoilt);
        let counts = running.counted();
        let of = counts.candidate;
        assert_eq!((of.unanswered, of.failed, of.answered, of.late), (1, 1, 0, 0));
        assert_eq!((counts.lateness.worse, counts.failures.even), (1, 1));
    }

    #[test]
    fn too_late_counts_where_a_node_had_the_query_and_not_where_the_router_never_sent_it() {
        let late = Outcome::Refused(Refusal::TooLate { waited: Micros(7) });
        assert_eq!(unanswered(&late, true), Some(Came::Unanswered));
        assert_eq!(unanswered(&late, false), None);
    }

    #[test]
    fn verdicts_are_compared_as_they_come() {
        let running = running();
        for right in [true, true, true] {
            running.verdict(Arm::Other, right);
        }
        running.verdict(Arm::Candidate, false);
        running.verdict(Arm::Candidate, false);
        let counts = running.counted();
        assert_eq!((counts.other.right, counts.candidate.wrong), (3, 2));
        assert_eq!((counts.accuracy.worse, counts.accuracy.even, counts.accuracy.better), (1, 0, 0));
    }
}
