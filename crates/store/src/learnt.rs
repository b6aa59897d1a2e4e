//! What live traffic says of what was measured, as the store takes and gives it. Plain values, and how verdicts are counted,
//! which has to be the same everywhere.

use crate::records::{Catalog, UnixMicros};
use crate::versions::Signed;
use modelless_types::{
    Accuracy, AccuracyMeasure, AccuracyRule, DeclaredRule, LiveRule, ModelId, Profile, Provenance, Task,
    Variant, VariantId,
};
use serde::{Deserialize, Serialize};

/// Verdicts on single queries that are kept at most, so that one given twice counts once. More are refused until some are
/// too old.
pub const FEEDBACK_KEPT: u64 = 1_000_000;
/// Verdicts of a variant that weigh: beyond these all are halved, so that what was said long ago fades.
pub const LIVE_MEMORY: u64 = 10_000;
/// Of all variants together so many changes of what is said of their live accuracy are remembered.
pub const FLAG_CHANGES_KEPT: u64 = 10_000;

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

impl StaleProfile {
    /// Of these there is one each.
    pub(crate) fn place(&self) -> (VariantId, &str, &str) {
        (self.variant, &self.device_class, &self.node)
    }
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
    /// How often counting began anew.
    #[serde(default)]
    pub round: u64,
}

/// A verdict that was given before, and in which round it was counted.
pub(crate) type Before = Option<(bool, u64)>;

impl LiveAccuracy {
    pub(crate) const fn none(variant: VariantId) -> Self {
        Self { variant, correct: 0, wrong: 0, flagged: None, round: 0 }
    }

    /// Nothing was said in the next round. `None` where nothing was said in this one either.
    pub(crate) fn anew(self) -> Option<Self> {
        let said = self.correct + self.wrong > 0 || self.flagged.is_some();
        said.then_some(Self { round: self.round + 1, ..Self::none(self.variant) })
    }

    /// With one more verdict, or another one for one `before`; `None` if it changes nothing.
    pub(crate) fn with(mut self, before: Before, correct: bool, full: bool) -> Option<(Kept, Self)> {
        let kept = match before {
            Some((before, _)) if before == correct => return None,
            // What it stands instead of is not counted any more.
            Some((_, round)) if round != self.round => return Some((Kept::Changed, self)),
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

/// What was done to what is said of a variant's live accuracy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagAction {
    /// It was found to be less accurate than measured, or by another amount than was said before.
    Flagged,
    /// Verdicts since reach what was measured.
    Recovered,
    /// An operator took the flag back, and counting began anew.
    Cleared,
    /// Its accuracy was measured anew and lies outside of the interval before, so counting began anew.
    Remeasured,
    /// Its model was promoted for the first time, so counting began anew.
    Promoted,
}

impl FlagAction {
    const ALL: [Self; 5] = [Self::Flagged, Self::Recovered, Self::Cleared, Self::Remeasured, Self::Promoted];

    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flagged => "flagged",
            Self::Recovered => "recovered",
            Self::Cleared => "cleared",
            Self::Remeasured => "remeasured",
            Self::Promoted => "promoted",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// An entry in the history of what is said of variants' live accuracy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlagChange {
    /// Place in the history of all variants.
    pub seq: u64,
    /// Of which.
    pub variant: VariantId,
    /// What.
    pub action: FlagAction,
    /// Why, for people.
    pub reason: String,
    /// Who, for people; empty where it was no person.
    pub who: String,
    /// When; `None` where that was not told.
    pub at: Option<UnixMicros>,
    /// Right answers until then, in that round.
    pub correct: u64,
    /// Wrong ones.
    pub wrong: u64,
    /// How accurate it was said to be from then on; `None`: as measured.
    pub value: Option<Accuracy>,
}

/// What is to be noted of a change.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) action: FlagAction,
    pub(crate) reason: String,
    pub(crate) who: String,
    pub(crate) at: Option<UnixMicros>,
}

impl Note {
    /// Its accuracy was measured anew.
    pub(crate) fn remeasured(now: &Profile) -> Self {
        let reason = format!("{} on {:?}", now.accuracy.value, now.accuracy.set);
        Self { action: FlagAction::Remeasured, reason, who: String::new(), at: None }
    }

    /// Its model became the default version for the first time.
    pub(crate) fn promoted(by: &Signed) -> Self {
        let reason = "verdicts before are of those who tried it".to_owned();
        Self { action: FlagAction::Promoted, reason, who: by.who.clone(), at: Some(by.at) }
    }

    pub(crate) fn into_change(self, seq: u64, before: LiveAccuracy, value: Option<Accuracy>) -> FlagChange {
        let Self { action, reason, who, at } = self;
        let LiveAccuracy { variant, correct, wrong, .. } = before;
        FlagChange { seq, variant, action, reason, who, at, correct, wrong, value }
    }
}

/// Whether an accuracy that answers were held against was measured anew and is really another one. While the intervals have
/// something in common, and when a part of a set becomes the whole, the figure is only known better, which says nothing new of
/// whether live traffic is like the labelled set; so what was said stands.
pub(crate) fn measured_otherwise(before: Option<&Profile>, now: &Profile) -> bool {
    let measured =
        |profile: &&Profile| !profile.is_estimated() && profile.accuracy.provenance == Provenance::Measured;
    let Some(before) = before.filter(measured).filter(|before| !before.detail.part_of_set) else {
        return false;
    };
    let (was, is) = (&before.accuracy, &now.accuracy);
    measured(&now) && (is.high < was.low || was.high < is.low)
}

impl Catalog {
    /// The mark of a profile that is off: of those of several nodes, the one that says by most.
    pub fn stale(&self, variant: VariantId, device_class: &str) -> Option<&StaleProfile> {
        let its = |stale: &&StaleProfile| stale.variant == variant && stale.device_class == device_class;
        self.stale.iter().filter(its).max_by_key(|stale| stale.ratio_ppm)
    }

    /// What was said of a variant's answers when this was read.
    pub fn live_accuracy(&self, variant: VariantId) -> Option<&LiveAccuracy> {
        self.live.iter().find(|live| live.variant == variant)
    }

    /// What a task's floors are compared with for a variant: see [`Catalog::floor`].
    pub fn floor_accuracy(&self, task: &Task, variant: VariantId, profile: &Profile) -> Accuracy {
        self.floor(task, variant, profile).value
    }

    /// What a task's floors are compared with for a variant on a device class: what was measured there or, where it was only
    /// declared, on the class where it was measured lowest. Where it was measured nowhere, what was declared, if the task takes
    /// that or has nothing that was measured. And what was found of it since where that is less and the task says that it counts.
    pub fn floor(&self, task: &Task, variant: VariantId, profile: &Profile) -> Floor {
        let rule = task.accuracy_rule;
        let mut floor = Floor { value: profile.floor(rule), from: profile.accuracy.provenance, counts: true };
        if profile.accuracy.is_declared() {
            if let Some(measured) = self.measured_profile(variant) {
                floor =
                    Floor { value: measured.floor(rule), from: measured.accuracy.provenance, counts: true };
            } else if task.declared_accuracy == DeclaredRule::UnlessMeasured && self.has_measured(task) {
                floor = Floor { value: Accuracy::ZERO, counts: false, ..floor };
            }
        }
        let flagged = self.live_accuracy(variant).and_then(|live| live.flagged);
        match (task.live_accuracy, flagged) {
            (LiveRule::Floors, Some(flagged)) if flagged < floor.value => {
                Floor { value: flagged, from: Provenance::Live, counts: true }
            }
            (LiveRule::Floors | LiveRule::Shown, _) => floor,
        }
    }

    /// Of each variant of a model what floors of its task are compared with: the lowest on any device class, as long as nobody says where it will run. What
    /// is only estimated counts where there is nothing else.
    pub fn floors_kept(&self, model: ModelId) -> impl Iterator<Item = Accuracy> {
        let task = self.models.iter().find(|known| known.id == model);
        let task = task.and_then(|model| self.tasks.iter().find(|task| task.id == model.task));
        let of = move |variant: &Variant| {
            let estimated = |profile: &&Profile| profile.accuracy.provenance == Provenance::Estimated;
            let kept = |profile: &Profile| Some(self.floor_accuracy(task?, variant.id, profile));
            let known = variant.profiles.iter().filter(|profile| !estimated(profile)).filter_map(kept).min();
            known.or_else(|| variant.profiles.iter().filter_map(kept).min())
        };
        self.variants_of(model).filter_map(of)
    }

    /// What a variant's answers are held against: the lowest of what was measured of it on any device class.
    pub fn measured(&self, variant: VariantId) -> Option<&AccuracyMeasure> {
        self.measured_profile(variant).map(|profile| &profile.accuracy)
    }

    /// What a variant's answers have to reach: of [`Catalog::measured`] the figure that floors are compared with, so of a part of a
    /// set its lower end.
    pub fn to_be_reached(&self, variant: VariantId) -> Option<Accuracy> {
        self.measured_profile(variant).map(|profile| profile.floor(AccuracyRule::Point))
    }

    fn measured_profile(&self, variant: VariantId) -> Option<&Profile> {
        let variant = self.variants.iter().find(|known| known.id == variant)?;
        let measured = variant.profiles.iter().filter(|profile| !profile.accuracy.is_declared());
        measured.min_by_key(|profile| profile.accuracy.value)
    }

    /// Whether anything that answers in a task without a pin was measured.
    fn has_measured(&self, task: &Task) -> bool {
        let defaults = self.defaults();
        let models = self.models_of(task.id).filter(|model| defaults.contains(&model.id));
        let mut profiles = models.flat_map(|model| self.variants_of(model.id)).flat_map(|v| &v.profiles);
        profiles.any(|profile| !profile.accuracy.is_declared())
    }
}

/// What a floor is compared with, and where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Floor {
    /// The figure.
    pub value: Accuracy,
    /// Where it comes from.
    pub from: Provenance,
    /// `false`: it is 0, since what was declared does not count beside what was measured.
    pub counts: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_counts_once_the_last_one_stands_and_old_ones_fade() {
        let none = LiveAccuracy::none(VariantId(1));
        let (kept, one) = none.with(None, true, false).unwrap();
        assert_eq!((kept, one.correct, one.wrong), (Kept::New, 1, 0));
        assert_eq!(one.with(Some((true, 0)), true, false), None);
        let (kept, one) = one.with(Some((true, 0)), false, true).unwrap();
        assert_eq!((kept, one.correct, one.wrong), (Kept::Changed, 0, 1));
        assert_eq!(one.with(None, true, true), None);
        let many = LiveAccuracy { correct: LIVE_MEMORY - 10, wrong: 10, ..none };
        let (_, many) = many.with(None, false, false).unwrap();
        assert_eq!((many.correct, many.wrong), ((LIVE_MEMORY - 10) / 2, 5));
    }

    #[test]
    fn what_changes_a_verdict_of_an_earlier_round_is_kept_and_not_counted() {
        let none = LiveAccuracy::none(VariantId(1));
        assert_eq!(none.anew(), None, "nothing was said");
        let anew = none.with(None, false, false).unwrap().1.anew().unwrap();
        assert_eq!(anew, LiveAccuracy { round: 1, ..none });
        assert_eq!(anew.with(Some((false, 0)), true, false), Some((Kept::Changed, anew)));
        assert_eq!(anew.with(None, true, false).unwrap().1.correct, 1);
    }
}
