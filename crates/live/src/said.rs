//! What members say of themselves in lists, kept apart from what changes with every heartbeat: it is told, and read, only when
//! it is another than before.
//!
//! Every list has a bound, and what is beyond it is counted, so that nobody takes a part for the whole. A correction wavers with
//! each batch; it is told anew only once it differs enough to matter ([`settled`]).

use crate::{Asked, Corrected, Demand, Error, MEMBER_BYTES, Member, Resident, Tried};
use modelless_decision::Correction;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Replicas that a member tells of at most.
pub const RESIDENT: usize = 1_024;
/// Classes that a member tells of at most.
pub const DEMAND: usize = 1_024;
/// Tasks of which a member tells at most when they were asked for.
pub const ASKED: usize = 4_096;
/// Corrections that a member tells of at most.
pub const CORRECTIONS: usize = 1_024;
/// Trials that a member tells of at most.
pub const TRIALS: usize = 64;
/// Batches from which on a correction says something about others of its like.
pub const ENOUGH: u32 = 10;
/// A ratio that moved by less than this part of itself is told as it was.
const STEADY: f64 = 0.05;
/// The same for its variance, which matters less.
const STEADY_SPREAD: f64 = 0.5;
/// A variance below this is none.
const NO_SPREAD: f64 = 1e-3;

/// The lists of a member, as they are stored.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    /// Whose, and the how manieth of them.
    pub(crate) instance: u64,
    pub(crate) number: u64,
    resident: Vec<Resident>,
    demand: Vec<Demand>,
    corrections: Vec<Corrected>,
    asked: Vec<Asked>,
    tells_all_asked: bool,
    trials: Vec<Tried>,
    left_out: u32,
}

impl Said {
    pub(crate) fn of(member: &Member, number: u64) -> Self {
        Self {
            instance: member.instance,
            number,
            resident: member.resident.to_vec(),
            demand: member.demand.to_vec(),
            corrections: member.corrections.to_vec(),
            asked: member.asked.to_vec(),
            tells_all_asked: member.tells_all_asked,
            trials: member.trials.to_vec(),
            left_out: member.left_out,
        }
    }

    pub(crate) fn json(&self, name: &str) -> Result<String, Error> {
        within(name, serde_json::to_string(self).expect("lists are plain data; this is a bug"))
    }

    /// Ready to be shared by all who read.
    pub(crate) fn lists(self) -> Lists {
        Lists {
            resident: self.resident.into(),
            demand: self.demand.into(),
            corrections: self.corrections.into(),
            asked: self.asked.into(),
            tells_all_asked: self.tells_all_asked,
            trials: self.trials.into(),
            left_out: self.left_out,
        }
    }
}

pub(crate) fn within(name: &str, json: String) -> Result<String, Error> {
    if json.len() > MEMBER_BYTES {
        return Err(Error::TooLarge { name: name.to_owned(), bytes: json.len() });
    }
    Ok(json)
}

/// The same in memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Lists {
    resident: Arc<[Resident]>,
    demand: Arc<[Demand]>,
    corrections: Arc<[Corrected]>,
    asked: Arc<[Asked]>,
    tells_all_asked: bool,
    trials: Arc<[Tried]>,
    left_out: u32,
}

impl Lists {
    pub(crate) fn of(member: &Member) -> Self {
        Self {
            resident: Arc::clone(&member.resident),
            demand: Arc::clone(&member.demand),
            corrections: Arc::clone(&member.corrections),
            asked: Arc::clone(&member.asked),
            tells_all_asked: member.tells_all_asked,
            trials: Arc::clone(&member.trials),
            left_out: member.left_out,
        }
    }

    pub(crate) fn fill(&self, member: Member) -> Member {
        let Self { resident, demand, corrections, asked, tells_all_asked, trials, left_out } = self.clone();
        Member { resident, demand, asked, tells_all_asked, corrections, trials, left_out, ..member }
    }
}

/// A member within all bounds; what had to be left out is counted.
#[must_use]
pub(crate) fn bounded(mut member: Member) -> Member {
    fn cut<T: Clone>(list: &mut Arc<[T]>, most: usize) -> usize {
        let over = list.len().saturating_sub(most);
        if over > 0 {
            *list = list[..most].into();
        }
        over
    }
    let asked = cut(&mut member.asked, ASKED);
    member.tells_all_asked &= asked == 0;
    let over = asked
        + cut(&mut member.resident, RESIDENT)
        + cut(&mut member.demand, DEMAND)
        + cut(&mut member.corrections, CORRECTIONS)
        + cut(&mut member.trials, TRIALS);
    member.left_out = member.left_out.saturating_add(u32::try_from(over).unwrap_or(u32::MAX));
    member
}

/// What is told after `before` was: corrections that hardly moved as they were told then.
#[must_use]
pub(crate) fn settled(before: &Member, mut now: Member) -> Member {
    let known = |seen: &Corrected| {
        let same = |told: &&Corrected| (told.task, told.ordinal) == (seen.task, seen.ordinal);
        before.corrections.iter().find(same).copied()
    };
    // Mostly in the same order, so that there is nothing to look for.
    let told = |(at, seen): (usize, &Corrected)| {
        let there = before.corrections.get(at).copied();
        let there = there.filter(|told| (told.task, told.ordinal) == (seen.task, seen.ordinal));
        let told = there.or_else(|| known(seen));
        told.filter(|told| is_steady(&told.correction, &seen.correction)).unwrap_or(*seen)
    };
    let corrections: Arc<[Corrected]> = now.corrections.iter().enumerate().map(told).collect();
    now.corrections = corrections;
    now
}

fn is_steady(told: &Correction, now: &Correction) -> bool {
    let ratio = (now.ratio - told.ratio).abs() <= STEADY * told.ratio.abs();
    let spread = (now.spread - told.spread).abs() <= (STEADY_SPREAD * told.spread.abs()).max(NO_SPREAD);
    ratio && spread && (told.samples >= ENOUGH) == (now.samples >= ENOUGH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;
    use modelless_types::TaskId;

    fn seen(ordinal: u8, ratio: f64, samples: u32) -> Corrected {
        Corrected { task: TaskId(1), ordinal, correction: Correction { ratio, spread: 0.0, samples } }
    }

    fn member(corrections: &[Corrected]) -> Member {
        Member { corrections: corrections.into(), ..Member::new(Role::Node, "n", 1) }
    }

    #[test]
    fn a_correction_that_wavers_is_told_as_it_was_and_one_that_drifts_is_told_anew() {
        let told = member(&[seen(0, 1.0, 20), seen(1, 1.0, 20), seen(2, 1.0, 9)]);
        let now = member(&[seen(1, 1.2, 21), seen(0, 1.04, 21), seen(2, 1.0, 10), seen(3, 1.0, 1)]);
        let all = settled(&told, now);
        let ratios: Vec<_> = all.corrections.iter().map(|c| (c.ordinal, c.correction.ratio)).collect();
        assert_eq!(ratios, [(1, 1.2), (0, 1.0), (2, 1.0), (3, 1.0)]);
        assert_eq!(all.corrections[2].correction.samples, 10, "it counts from now on");
        // It is compared with what was told, so small steps do not get away with it.
        let later = settled(&all, member(&[seen(0, 1.08, 30)]));
        assert_eq!(later.corrections[0], seen(0, 1.08, 30));
    }

    #[test]
    fn what_is_beyond_a_bound_is_left_out_and_counted() {
        let many: Vec<Corrected> =
            (0..=u8::MAX).cycle().take(CORRECTIONS + 7).map(|n| seen(n, 1.0, 1)).collect();
        let cut = bounded(Member { left_out: 3, ..member(&many) });
        assert_eq!((cut.corrections.len(), cut.left_out), (CORRECTIONS, 10));
        let asked = |count: u32| {
            let asked = (0..count).map(|task| Asked { task: TaskId(task), at: modelless_types::Micros(1) });
            bounded(Member { asked: asked.collect(), tells_all_asked: true, ..member(&[]) })
        };
        let most = u32::try_from(ASKED).unwrap();
        assert_eq!([most, most + 1].map(|count| asked(count).tells_all_asked), [true, false]);
        assert_eq!(asked(most + 1).asked.len(), ASKED);
    }
}
