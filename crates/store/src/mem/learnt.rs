//! What live traffic says of what was measured.

use super::State;
use crate::error::{Error, Result};
use crate::learnt::{
    FEEDBACK_KEPT, FLAG_CHANGES_KEPT, Feedback, FlagAction, FlagChange, Kept, LiveAccuracy, Note,
    StaleProfile, Verdict,
};
use crate::records::UnixMicros;
use crate::versions::Signed;
use modelless_types::{Accuracy, ModelId, Profile, VariantId};

impl State {
    pub(super) fn mark_stale(&mut self, stale: StaleProfile) -> bool {
        let known = self.variant(stale.variant).ok();
        let there = known.and_then(|variant| variant.profile_on(&stale.device_class));
        if there.is_none_or(Profile::is_estimated) {
            return false;
        }
        self.catalog.version += 1;
        match self.catalog.stale.iter_mut().find(|known| known.place() == stale.place()) {
            Some(known) => *known = StaleProfile { since: known.since, ..stale },
            None => self.catalog.stale.push(stale),
        }
        self.catalog.stale.sort_by(|a, b| a.place().cmp(&b.place()));
        true
    }

    pub(super) fn clear_stale(&mut self, variant: VariantId, device_class: &str, node: &str) -> bool {
        let before = self.catalog.stale.len();
        let its = |s: &StaleProfile| s.variant == variant && s.device_class == device_class && s.node == node;
        self.catalog.stale.retain(|stale| !its(stale));
        let cleared = self.catalog.stale.len() < before;
        if cleared {
            self.catalog.version += 1;
            if self.catalog.stale(variant, device_class).is_none() {
                self.measurings.remove(&(variant, device_class.to_owned()));
            }
        }
        cleared
    }

    pub(super) fn put_feedback(&mut self, given: Feedback) -> Verdict {
        let variant = given.variant;
        if self.variant(variant).is_err() {
            return Verdict { kept: Kept::Gone, live: LiveAccuracy::none(variant) };
        }
        let live = self.live(variant).unwrap_or(LiveAccuracy::none(variant));
        let before = self.feedback.get(&given.query).map(|(before, round)| (before.correct, *round));
        let full = self.feedback.len() as u64 >= FEEDBACK_KEPT;
        let Some((kept, live)) = live.with(before, given.correct, full) else {
            return Verdict { kept: if before.is_some() { Kept::Same } else { Kept::Full }, live };
        };
        let round = before.map_or(live.round, |(_, round)| round);
        self.feedback.insert(given.query.clone(), (given, round));
        self.set_live(live);
        Verdict { kept, live }
    }

    fn live(&self, variant: VariantId) -> Option<LiveAccuracy> {
        self.catalog.live_accuracy(variant).copied()
    }

    fn set_live(&mut self, live: LiveAccuracy) {
        self.catalog.live.retain(|known| known.variant != live.variant);
        self.catalog.live.push(live);
        self.catalog.live.sort_by_key(|live| live.variant);
    }

    pub(super) fn flag_accuracy(&mut self, live: LiveAccuracy, at: UnixMicros, reason: &str) -> bool {
        let Some(before) = self.live(live.variant) else { return false };
        if before.round != live.round || before.flagged == live.flagged {
            return false;
        }
        self.catalog.version += 1;
        self.set_live(LiveAccuracy { flagged: live.flagged, ..before });
        let action = if live.flagged.is_some() { FlagAction::Flagged } else { FlagAction::Recovered };
        let note = Note { action, reason: reason.to_owned(), who: String::new(), at: Some(at) };
        self.note_flag(note, before, live.flagged);
        true
    }

    pub(super) fn clear_flag(&mut self, variant: VariantId, by: Signed, reason: &str) -> Result<FlagChange> {
        let name = self.variant(variant)?.name.clone();
        let not_flagged = || Error::NotFlagged { name };
        if self.live(variant).is_none_or(|before| before.flagged.is_none()) {
            return Err(not_flagged());
        }
        let note =
            Note { action: FlagAction::Cleared, reason: reason.to_owned(), who: by.who, at: Some(by.at) };
        self.begin_anew(variant, note).ok_or_else(not_flagged)
    }

    /// Verdicts on a variant are counted anew, if there are any.
    pub(super) fn begin_anew(&mut self, variant: VariantId, note: Note) -> Option<FlagChange> {
        let before = self.live(variant)?;
        self.set_live(before.anew()?);
        Some(self.note_flag(note, before, None))
    }

    /// A model became the default version for the first time.
    pub(super) fn counted_anew(&mut self, model: ModelId, by: &Signed) {
        let variants: Vec<VariantId> = self.catalog.variants_of(model).map(|variant| variant.id).collect();
        for variant in variants {
            self.begin_anew(variant, Note::promoted(by));
        }
    }

    fn note_flag(&mut self, note: Note, before: LiveAccuracy, value: Option<Accuracy>) -> FlagChange {
        let change = note.into_change(self.next("flag change"), before, value);
        self.flag_changes.push(change.clone());
        self.flag_changes.retain(|known| known.seq + FLAG_CHANGES_KEPT > change.seq);
        change
    }
}
