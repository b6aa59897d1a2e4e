//! What live traffic says of what was measured, as the store takes and gives it. Plain values, and how verdicts are counted,
//! which has to be the same everywhere.

use crate::records::{Catalog, UnixMicros};
use modelless_types::{Accuracy, LiveRule, Profile, Task, VariantId};
use serde::{Deserialize, Serialize};

/// Verdicts on single queries that are kept at most, so that one given twice counts once. More are refused until some are
/// too old.
pub const FEEDBACK_KEPT: u64 = 1_000_000;
/// Verdicts of a variant that weigh: beyond these all are halved, so that what was said long ago fades.
pub const LIVE_MEMORY: u64 = 10_000;

/// A profile that is off for so long that it had better be measured again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StaleProfile {
    /// Of what.
    pub variant: VariantId,
    /// On which device class.
    pub device_class: String,
    /// Which node says so.
    pub node: String,
    /// How much slower it is there, in parts per million.
    pub ratio_ppm: u64,
    /// Since when it is marked.
    pub since: UnixMicros,
}

/// Whether an answer was right.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Feedback {
    /// The query's name, as it was given out.
    pub query: String,
    /// Who answered it.
    pub variant: VariantId,
    /// When.
    pub answered: UnixMicros,
    /// The verdict.
    pub correct: bool,
}

/// What became of a verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// It is the first on this query.
    New,
    /// It says what was said before.
    Same,
    /// It stands instead of the one before.
    Changed,
    /// The variant was removed meanwhile.
    Gone,
    /// There are [`FEEDBACK_KEPT`] already.
    Full,
}

/// What became of a verdict, and what all of the variant come to with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// What became of it.
    pub kept: Kept,
    /// All of the variant.
    pub live: LiveAccuracy,
}

/// What the verdicts on a variant's answers come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LiveAccuracy {
    /// Whose.
    pub variant: VariantId,
    /// Right answers.
    pub correct: u64,
    /// Wrong ones.
    pub wrong: u64,
    /// How accurate it was when it was last found to be less so than measured; `None` while it is not.
    pub flagged: Option<Accuracy>,
}

impl LiveAccuracy {
    /// With one more verdict, or another one for one `before`; `None` if it changes nothing.
    pub(crate) fn with(mut self, before: Option<bool>, correct: bool, full: bool) -> Option<(Kept, Self)> {
        let kept = match before {
            Some(before) if before == correct => return None,
            Some(_) => Kept::Changed,
            None if full => return None,
            None => Kept::New,
        };
        let (more, less) =
            if correct { (&mut self.correct, &mut self.wrong) } else { (&mut self.wrong, &mut self.correct) };
        *more += 1;
        if kept == Kept::Changed {
            *less = less.saturating_sub(1);
        }
        if self.correct + self.wrong > LIVE_MEMORY {
            self.correct /= 2;
            self.wrong /= 2;
        }
        Some((kept, self))
    }
}

impl Catalog {
    /// The mark of a profile that is off.
    pub fn stale(&self, variant: VariantId, device_class: &str) -> Option<&StaleProfile> {
        self.stale.iter().find(|stale| stale.variant == variant && stale.device_class == device_class)
    }

    /// What was said of a variant's answers when this was read.
    pub fn live_accuracy(&self, variant: VariantId) -> Option<&LiveAccuracy> {
        self.live.iter().find(|live| live.variant == variant)
    }

    /// What a task's floors are compared with for a variant: what was measured, or what was found of it since where that is
    /// less and the task says that it counts.
    pub fn floor_accuracy(&self, task: &Task, variant: VariantId, profile: &Profile) -> Accuracy {
        let measured = profile.floor(task.accuracy_rule);
        match task.live_accuracy {
            LiveRule::Shown => measured,
            LiveRule::Floors => {
                let flagged = self.live_accuracy(variant).and_then(|live| live.flagged);
                flagged.map_or(measured, |flagged| flagged.min(measured))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_counts_once_the_last_one_stands_and_old_ones_fade() {
        let none = LiveAccuracy { variant: VariantId(1), correct: 0, wrong: 0, flagged: None };
        let (kept, one) = none.with(None, true, false).unwrap();
        assert_eq!((kept, one.correct, one.wrong), (Kept::New, 1, 0));
        assert_eq!(one.with(Some(true), true, false), None);
        let (kept, one) = one.with(Some(true), false, true).unwrap();
        assert_eq!((kept, one.correct, one.wrong), (Kept::Changed, 0, 1));
        assert_eq!(one.with(None, true, true), None);
        let many = LiveAccuracy { correct: LIVE_MEMORY - 10, wrong: 10, ..none };
        let (_, many) = many.with(None, false, false).unwrap();
        assert_eq!((many.correct, many.wrong), ((LIVE_MEMORY - 10) / 2, 5));
    }
}
