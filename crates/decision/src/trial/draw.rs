//! Which queries a version on trial answers.

use crate::admission::{self, Admitted};
use crate::query::Class;
use crate::route::{Snapshot, mix};
use modelless_types::{Goals, ModelId, QueryNumber, Refusal, Share, TaskId, TrialId};

/// Whose a query is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Arm {
    /// It was drawn, and the version on trial answers it.
    Candidate,
    /// It could have been drawn, and was not.
    Other,
}

/// A trial, as far as queries are concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnTrial {
    /// Which.
    pub id: TrialId,
    /// The version on trial.
    pub candidate: ModelId,
    /// How much it is asked.
    pub share: Share,
    /// It is asked copies, whose answers nobody gets.
    pub shadow: bool,
}

/// What becomes of a query while a version is on trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Who may answer it.
    pub admitted: Admitted,
    /// In which arm it counts.
    pub arm: Option<Arm>,
    /// Who may answer a copy of it.
    pub copied: Option<Class>,
    /// Where it counts: who would answer it were it drawn, and were it not.
    pub either: Option<[Admitted; 2]>,
}

impl Taken {
    /// It has nothing to do with a trial.
    pub const fn usual(admitted: Admitted) -> Self {
        Self { admitted, arm: None, copied: None, either: None }
    }

    /// The version on trial has no time for it now, as `in_time` says: it is answered as ever, and counts for neither, whoever was to have
    /// it. So none is refused because it was drawn.
    #[must_use]
    pub fn unless_late(self, in_time: impl FnOnce(&Admitted) -> bool) -> Self {
        match self.either {
            Some([tried, usual]) if !in_time(&tried) => Self::usual(usual),
            Some(_) | None => self,
        }
    }
}

/// Whether a query is drawn: by its number and the trial alone, so that it can be found out again.
pub fn is_drawn(trial: TrialId, number: QueryNumber, share: Share) -> bool {
    let drawn = (u128::from(mix(number.0 ^ mix(trial.0))) * 1_000_000) >> 64;
    drawn < u128::from(share.ppm())
}

/// Which variants may answer a query while a version is on trial, and in which arm it counts. Who is refused without the trial is refused
/// with it. None counts that could not be drawn: those that pin, those with goals that the version cannot keep even on an idle machine, and all while it,
/// or what answers otherwise, is in no memory.
pub fn admit(
    snapshot: &Snapshot,
    task: TaskId,
    goals: &Goals,
    (trial, number): (&OnTrial, QueryNumber),
) -> Result<Taken, Refusal> {
    let usual = admission::admit(snapshot, task, goals)?;
    if goals.model.is_some() || goals.variant.is_some() {
        return Ok(Taken::usual(usual));
    }
    let pinned = Goals { model: Some(trial.candidate), ..*goals };
    let Ok(tried) = admission::admit(snapshot, task, &pinned) else { return Ok(Taken::usual(usual)) };
    if !snapshot.is_resident(&tried.class) || !snapshot.is_resident(&usual.class) {
        return Ok(Taken::usual(usual));
    }
    let drawn = is_drawn(trial.id, number, trial.share);
    if trial.shadow {
        return Ok(Taken { copied: drawn.then_some(tried.class), ..Taken::usual(usual) });
    }
    let (admitted, arm) = if drawn { (tried, Arm::Candidate) } else { (usual, Arm::Other) };
    Ok(Taken { admitted, arm: Some(arm), copied: None, either: Some([tried, usual]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_as_many_are_drawn_as_are_to_be_and_the_same_ones_again() {
        for (trial, ppm) in [(1, 50_000), (2, 50_000), (3, 500_000), (4, 1_000_000), (5, 1_000)] {
            let share = Share::from_ppm(ppm).unwrap();
            let drawn = |number| is_drawn(TrialId(trial), QueryNumber(number), share);
            let count = (0..200_000).filter(|number| drawn(*number)).count();
            let expected = usize::try_from(ppm / 5).unwrap();
            assert!(count.abs_diff(expected) <= expected / 20 + 30, "{ppm}: {count}");
            assert!((0..1_000).all(|number| drawn(number) == drawn(number)));
        }
    }

    #[test]
    fn trials_draw_apart_from_each_other() {
        let share = Share::from_ppm(500_000).unwrap();
        let both = |number| [1, 2].map(|trial| is_drawn(TrialId(trial), QueryNumber(number), share));
        let same = (0..10_000).filter(|number| both(*number)[0] == both(*number)[1]).count();
        assert!((4_700..5_300).contains(&same), "{same}");
    }
}
