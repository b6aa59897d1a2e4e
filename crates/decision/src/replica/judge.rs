//! How a replica that serves stands: well, overloaded or interfered. A pure function of what is seen of it.
//!
//! Nothing is compared with a figure that holds for every model. What is slow follows from the replica's own profile and
//! from the tightest bound that is asked of it: see [`Limits`]. `docs/states.md` says the same in prose.

use super::ReplicaEvent;
use crate::estimate::{Correction, Moments, Z99};
use crate::words::time;
use alloc::format;
use alloc::string::String;
use modelless_types::{Micros, ReplicaState};
use serde::{Deserialize, Serialize};

/// A replica is slow when this share of the time that its tightest bound leaves is lost to slowness, ...
const SHARE_LOST: f64 = 0.25;
/// ... but never for less than this factor over its profile, and always for the second one.
const LEAST_SLOW: f64 = 1.25;
const MOST_SLOW: f64 = 1.5;
/// So many batches one after the other are told from the profile's own scatter.
const TELLING: f64 = 20.0;
/// Slowness that costs less than this share of the tightest bound changes nothing for anybody.
const WORTH: f64 = 0.005;
/// It is well again below this share of the way from its profile to what is slow.
const WELL: f64 = 0.4;
/// Batches seen before it is said.
const SEEN: u32 = 10;
/// Trouble is over when there was no sign of it for so many of the tightest bounds, within these limits.
const CALM_BOUNDS: u64 = 2;
const CALM_LEAST: Micros = Micros::from_millis(500);
const CALM_MOST: Micros = Micros::from_secs(2);
/// What falls back soon after stays twice as long each time, so often.
const RELAPSES: u8 = 4;
/// A bound where nothing was asked lately.
const USUAL_BOUND: Micros = Micros::from_millis(250);
/// While nothing of it is run, what the machine does stands for it, for so long at most.
const HELD: Micros = Micros::from_secs(60);

/// What the machine does beside the node: figures of its operating system, over the last second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Host {
    /// Cores that the node may use.
    pub cores: u16,
    /// Thousandths of a core that were busy of them, whoever with; what was stolen counts.
    pub busy_milli: u32,
    /// Thousandths of the time that another machine on the same hardware took.
    pub steal_permille: u16,
    /// Threads of the whole machine that run or could.
    pub runnable: u32,
    /// Thousandths of a core that the processes took which run this node's models, where that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_milli: Option<u32>,
}

/// The machine as one replica's node finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Beside {
    /// What its system tells.
    pub host: Host,
    /// Thousandths of a core that this node's own batches took: as the system counts it, or else as long as they ran.
    pub own_milli: u32,
    /// Cores that its lanes have.
    pub lanes: u16,
}

impl Beside {
    /// Cores that others keep busy, in thousandths.
    pub fn others_milli(&self) -> u32 {
        self.host.busy_milli.saturating_sub(self.own_milli)
    }

    /// Whether others leave the lanes less than the cores that they have.
    pub fn contended(&self) -> bool {
        let all = u32::from(self.host.cores) * 1_000;
        // Some of a core is always busy with something.
        self.others_milli() > all.saturating_sub(u32::from(self.lanes) * 1_000) + 250
    }
}

/// What is seen of a replica that serves.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Signs {
    /// From an input to its answer, alone and undisturbed, as the profile says.
    pub alone: Moments,
    /// Live over profiled time at the same batch.
    pub live: Correction,
    /// The tightest bound of those who may be answered by it and came lately.
    pub bound: Option<Micros>,
    /// What is asked of its device, as a share of what that can do at the speed of the profiles.
    pub load: f64,
    /// Since when no batch was bound behind which something would be late; `None`: none was.
    pub late: Option<Micros>,
    /// Since when it was not seen to be slower than what is well; `None`: it was not.
    pub slow: Option<Micros>,
    /// Since when no batch of it ended.
    pub unseen: Option<Micros>,
    /// How often it fell back soon after it had been well.
    pub relapses: u8,
    /// What the machine does.
    #[serde(default)]
    pub beside: Option<Beside>,
}

/// What a replica is compared with: made of its profile and of what is asked of it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// At this factor over its profile it is slow.
    pub slow: f64,
    /// Below this one it is well again.
    pub well: f64,
    /// And if that costs at least so many microseconds.
    pub worth_us: f64,
    /// Trouble is over without a sign of it for so long.
    pub calm: Micros,
}

impl Limits {
    /// Of these signs.
    pub fn of(signs: &Signs) -> Self {
        let bound = signs.bound.unwrap_or(USUAL_BOUND);
        let bound_us = Moments::exactly(bound).mean;
        let alone = Moments::exactly(signs.alone.p99()).mean.max(1.0);
        let by_bound = 1.0 + SHARE_LOST * (bound_us / alone - 1.0);
        let scatter = libm::sqrt(signs.alone.var) / signs.alone.mean.max(1.0);
        let by_scatter = 1.0 + Z99 * scatter / libm::sqrt(TELLING);
        let slow = by_bound.clamp(LEAST_SLOW, MOST_SLOW).max(by_scatter);
        let calm = Micros(bound.0.saturating_mul(CALM_BOUNDS)).clamp(CALM_LEAST, CALM_MOST);
        Self {
            slow,
            well: 1.0 + WELL * (slow - 1.0),
            worth_us: WORTH * bound_us,
            calm: Micros(calm.0 << signs.relapses.min(RELAPSES)),
        }
    }
}

impl Signs {
    /// Slower than its profile, by enough to matter, though what is asked of its device could be done.
    fn is_slow(&self, limits: &Limits) -> bool {
        let lost_us = (self.live.ratio - 1.0) * self.alone.mean;
        self.live.samples >= SEEN
            && self.live.ratio >= limits.slow
            && lost_us >= limits.worth_us
            && self.load < 1.0
    }

    /// Nothing of it is run, and the machine is as it was: what was seen last still stands.
    pub fn still_stands(&self) -> bool {
        let contended = self.beside.is_some_and(|beside| beside.contended());
        contended && self.unseen.is_some_and(|unseen| unseen < HELD)
    }
}

/// The event that what is seen of a replica amounts to, if any; asked again after each, since one may follow another.
pub fn judge(state: ReplicaState, signs: &Signs) -> Option<ReplicaEvent> {
    let limits = Limits::of(signs);
    let over = |since: Option<Micros>| since.is_none_or(|since| since >= limits.calm);
    match state {
        ReplicaState::Active if signs.is_slow(&limits) => Some(ReplicaEvent::SlowedDown),
        ReplicaState::Active if !over(signs.late) => Some(ReplicaEvent::QueueGrew),
        // What is slow for a reason that is not its own load is not overloaded, whatever waits for it.
        ReplicaState::Overloaded if over(signs.late) || signs.is_slow(&limits) => {
            Some(ReplicaEvent::QueueDrained)
        }
        ReplicaState::Interfered
            if signs.live.ratio < limits.well && over(signs.slow) && !signs.still_stands() =>
        {
            Some(ReplicaEvent::SpedUp)
        }
        ReplicaState::Inactive
        | ReplicaState::Loading
        | ReplicaState::Active
        | ReplicaState::Overloaded
        | ReplicaState::Interfered
        | ReplicaState::Draining
        | ReplicaState::Failed => None,
    }
}

/// Whether a replica fell back: it was in trouble so short a while ago that it should stay longer this time.
pub fn fell_back(since_trouble: Micros, calm: Micros) -> bool {
    since_trouble < Micros(calm.0.saturating_mul(5))
}

/// In words, why [`judge`] says this: for the record of a transition.
pub fn because(state: ReplicaState, event: ReplicaEvent, signs: &Signs) -> String {
    let limits = Limits::of(signs);
    match (state, event) {
        (_, ReplicaEvent::SlowedDown) => format!(
            "slower than its profile though its load is below capacity: {}{}",
            speed(signs, &limits),
            machine(signs)
        ),
        (_, ReplicaEvent::SpedUp) => {
            format!("as fast as its profile again: {}{}", speed(signs, &limits), machine(signs))
        }
        (_, ReplicaEvent::QueueGrew) => format!("what waits for it cannot be done in time: {}", asked(signs)),
        (ReplicaState::Overloaded, ReplicaEvent::QueueDrained) if signs.is_slow(&limits) => {
            "its load is below capacity: it is slow for another reason".into()
        }
        (_, ReplicaEvent::QueueDrained) => format!(
            "its queue drains in time again: no sign of overload for {}; {}",
            time(limits.calm),
            asked(signs)
        ),
        _ => String::new(),
    }
}

/// What a replica's state rests on, in lines for people: what is seen, what that is compared with, and what would change it.
pub fn explain(state: ReplicaState, signs: &Signs) -> alloc::vec::Vec<String> {
    let limits = Limits::of(signs);
    let mut lines = alloc::vec![
        format!("speed: {}{}", speed(signs, &limits), machine(signs)),
        format!("load: {}", asked(signs)),
    ];
    lines.push(match state {
        ReplicaState::Active => format!(
            "it is interfered from {:.2} times its profile on, if that costs {} or more and its load is below capacity; \
             overloaded when a batch leaves others behind that cannot be in time",
            limits.slow,
            time(Moments { mean: limits.worth_us, var: 0.0 }.mean()),
        ),
        ReplicaState::Overloaded => {
            format!("it is active again {} after the last sign of overload{}", time(limits.calm), again(signs))
        }
        ReplicaState::Interfered => format!(
            "it is active again below {:.2} times its profile, {} after it was last above{}",
            limits.well,
            time(limits.calm),
            again(signs)
        ),
        ReplicaState::Inactive | ReplicaState::Loading | ReplicaState::Draining | ReplicaState::Failed => {
            "it does not serve".into()
        }
    });
    lines
}

fn speed(signs: &Signs, limits: &Limits) -> String {
    format!(
        "{:.2} times what its profile says ({} alone) in {} batches; slow is {:.2}, well {:.2}{}",
        signs.live.ratio,
        time(signs.alone.p99()),
        signs.live.samples,
        limits.slow,
        limits.well,
        signs.bound.map_or_else(String::new, |bound| format!(", for a bound of {}", time(bound))),
    )
}

fn asked(signs: &Signs) -> String {
    let bound = match signs.bound {
        Some(bound) => format!("the tightest bound asked lately is {}", time(bound)),
        None => "nothing was asked lately".into(),
    };
    format!("{:.0} % of what its device can do is asked of it, {bound}", signs.load * 100.0)
}

fn machine(signs: &Signs) -> String {
    let Some(beside) = signs.beside else { return String::new() };
    let tenth = |milli: u32| format!("{}.{}", milli / 1_000, milli % 1_000 / 100);
    format!(
        "; on its machine others keep {} of {} cores busy, {}.{} % is stolen, {} threads want to run",
        tenth(beside.others_milli()),
        beside.host.cores,
        beside.host.steal_permille / 10,
        beside.host.steal_permille % 10,
        beside.host.runnable,
    )
}

fn again(signs: &Signs) -> String {
    match signs.relapses {
        0 => String::new(),
        times => format!(" (longer, as it fell back {times} times)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::next;
    use proptest::prelude::*;

    const MS: u64 = 1_000;

    fn signs() -> Signs {
        Signs {
            alone: Moments { mean: 10_000.0, var: 1_000_000.0 },
            live: Correction { ratio: 1.0, spread: 0.0, samples: 50 },
            bound: Some(Micros(40 * MS)),
            load: 0.3,
            late: None,
            slow: None,
            unseen: Some(Micros(0)),
            relapses: 0,
            beside: None,
        }
    }

    fn slow(ratio: f64) -> Signs {
        Signs { live: Correction { ratio, ..signs().live }, slow: Some(Micros(0)), ..signs() }
    }

    fn others(busy_milli: u32) -> Beside {
        let host = Host { cores: 2, busy_milli, steal_permille: 35, runnable: 3, own_milli: None };
        Beside { host, own_milli: 0, lanes: 1 }
    }

    #[test]
    fn a_tighter_bound_and_a_steadier_profile_make_less_slowness_count() {
        let of = |bound: u64, var: f64| {
            Limits::of(&Signs {
                bound: Some(Micros(bound)),
                alone: Moments { mean: 10_000.0, var },
                ..signs()
            })
        };
        assert!((of(13 * MS, 1e6).slow - 1.25).abs() < 1e-9, "hardly any time to lose: the least");
        assert!((of(900 * MS, 1e6).slow - 1.5).abs() < 1e-9, "all the time of the world: the most");
        let between = of(30 * MS, 1e6).slow;
        assert!(between > 1.3 && between < 1.5, "{between}");
        assert!(of(30 * MS, 4e8).slow > 2.0, "a profile that scatters as widely says nothing at 1.5 times");
        assert!(of(30 * MS, 1e6).calm < of(900 * MS, 1e6).calm);
    }

    #[test]
    fn what_is_slow_below_capacity_is_interfered_and_what_is_slow_above_it_is_not() {
        assert_eq!(judge(ReplicaState::Active, &slow(1.6)), Some(ReplicaEvent::SlowedDown));
        assert_eq!(judge(ReplicaState::Active, &Signs { load: 1.2, ..slow(1.6) }), None);
        assert_eq!(judge(ReplicaState::Active, &slow(1.2)), None);
        let loose = Signs { bound: Some(Micros::from_secs(10)), ..slow(1.6) };
        assert_eq!(judge(ReplicaState::Active, &loose), None, "6 ms of 10 s change nothing");
        let few = Signs { live: Correction { samples: 9, ..slow(1.6).live }, ..slow(1.6) };
        assert_eq!(judge(ReplicaState::Active, &few), None);
    }

    #[test]
    fn a_queue_that_grows_because_it_is_slow_is_told_as_interference() {
        let behind = Signs { late: Some(Micros(0)), ..slow(1.8) };
        assert_eq!(judge(ReplicaState::Active, &behind), Some(ReplicaEvent::SlowedDown));
        assert_eq!(judge(ReplicaState::Overloaded, &behind), Some(ReplicaEvent::QueueDrained));
        let own = Signs { load: 1.3, ..behind };
        assert_eq!(judge(ReplicaState::Active, &own), Some(ReplicaEvent::QueueGrew));
        assert_eq!(judge(ReplicaState::Overloaded, &own), None);
        let why = because(ReplicaState::Active, ReplicaEvent::QueueGrew, &own);
        assert!(why.contains("130 %") && why.contains("40 ms"), "{why}");
    }

    #[test]
    fn trouble_is_left_only_well_inside_and_after_a_while_that_grows_with_each_relapse() {
        let after = |ratio, ms: u64, relapses| {
            let well = Signs { slow: Some(Micros(ms * MS)), relapses, ..slow(ratio) };
            judge(ReplicaState::Interfered, &well)
        };
        assert_eq!(after(1.3, 9_000, 0), None, "below what is slow is not yet well");
        assert_eq!(after(1.05, 400, 0), None);
        assert_eq!(after(1.05, 500, 0), Some(ReplicaEvent::SpedUp));
        assert_eq!(after(1.05, 900, 1), None);
        assert_eq!(after(1.05, 1_000, 1), Some(ReplicaEvent::SpedUp));
        assert_eq!(after(1.05, 8_000, 200), Some(ReplicaEvent::SpedUp), "there is a longest while");
        let late =
            |ms: u64| judge(ReplicaState::Overloaded, &Signs { late: Some(Micros(ms * MS)), ..signs() });
        assert_eq!((late(400), late(500)), (None, Some(ReplicaEvent::QueueDrained)));
    }

    #[test]
    fn where_nothing_is_run_the_machine_says_whether_it_is_over() {
        let gone = |busy, unseen| {
            let unseen = Some(Micros::from_secs(unseen));
            let signs = Signs { unseen, slow: unseen, beside: Some(others(busy)), ..signs() };
            judge(ReplicaState::Interfered, &signs)
        };
        assert_eq!(gone(2_000, 20), None, "the other still has the core");
        assert_eq!(gone(2_000, 60), Some(ReplicaEvent::SpedUp), "it is tried again all the same");
        assert_eq!(gone(200, 20), Some(ReplicaEvent::SpedUp));
    }

    #[test]
    fn the_words_follow_the_figures_that_decide() {
        let told = |signs: &Signs| explain(ReplicaState::Active, signs).join("\n");
        let (one, other) = (signs(), Signs { alone: Moments { mean: 30_000.0, var: 1e6 }, ..signs() });
        assert!(told(&one).contains("12.32") || told(&one).contains("12 ms"), "{}", told(&one));
        assert!(
            told(&other).contains("from 1.25 times") && !told(&one).contains("from 1.25 times"),
            "{}",
            told(&other)
        );
        let why = because(
            ReplicaState::Active,
            ReplicaEvent::SlowedDown,
            &Signs { beside: Some(others(1_500)), ..slow(1.9) },
        );
        assert!(
            why.contains("1.90 times") && why.contains("1.5 of 2 cores") && why.contains("3.5 %"),
            "{why}"
        );
    }

    proptest! {
        #[test]
        fn whatever_is_seen_it_comes_to_rest_by_legal_steps(
            ratio in 0.1_f64..8.0, samples in 0_u32..40, bound in proptest::option::of(1_u64..20_000_000),
            load in 0.0_f64..3.0, late in proptest::option::of(0_u64..20_000_000),
            slow in proptest::option::of(0_u64..20_000_000), relapses in 0_u8..9, mean in 1.0_f64..1e6, var in 0.0_f64..1e10,
        ) {
            let signs = Signs {
                alone: Moments { mean, var }, live: Correction { ratio, spread: 0.0, samples },
                bound: bound.map(Micros), load, late: late.map(Micros), slow: slow.map(Micros),
                unseen: None, relapses, beside: None,
            };
            for state in ReplicaState::ALL {
                let (mut at, mut steps) = (state, 0);
                while let Some(event) = judge(at, &signs) {
                    prop_assert!(at.serves(), "{at}");
                    prop_assert!(!because(at, event, &signs).is_empty());
                    at = next(at, event).map_err(|illegal| TestCaseError::fail(alloc::format!("{illegal}")))?;
                    steps += 1;
                    prop_assert!(steps < 3, "{state} goes round: {signs:?}");
                }
                prop_assert!(!explain(at, &signs).is_empty());
            }
        }
    }
}
