//! Which version of a name answers where nothing is pinned, and who changed that.

use super::State;
use crate::VERSION_CHANGES_KEPT;
use crate::error::{Error, Result};
use crate::trials::ended;
use crate::versions::{Signed, VersionAction, VersionChange, Wish, WishKept, was_default};
use modelless_types::{Model, ModelId, TaskId, TenantId};
use std::cmp::Reverse;

impl State {
    pub(super) fn model(&self, id: ModelId) -> Result<Model> {
        let found = self.catalog.models.iter().find(|model| model.id == id);
        found.cloned().ok_or_else(|| Error::not_found("model", id))
    }

    /// The versions of a name that were promoted, the default first.
    pub(super) fn promoted(&self, task: TaskId, tenant: TenantId, name: &str) -> Vec<(u32, ModelId)> {
        let of_name =
            |model: &&Model| (model.task, model.tenant, model.name.as_str()) == (task, tenant, name);
        let mut found: Vec<&Model> =
            self.catalog.models.iter().filter(of_name).filter(|model| model.promoted > 0).collect();
        found.sort_by_key(|model| Reverse(model.promoted));
        found.into_iter().map(|model| (model.version, model.id)).collect()
    }

    fn set_promoted(&mut self, id: ModelId, promoted: u64) {
        let model = self.catalog.models.iter_mut().find(|model| model.id == id);
        model.expect("it was there a moment ago; this is a bug").promoted = promoted;
    }

    /// Does something to a version and adds it to the history.
    pub(super) fn noted(
        &mut self,
        model: &Model,
        action: VersionAction,
        by: Signed,
        act: impl FnOnce(&mut Self),
    ) -> VersionChange {
        let default = |state: &Self| {
            state.promoted(model.task, model.tenant, &model.name).first().map(|(version, _)| *version)
        };
        let before = default(self);
        act(self);
        let noted = change(self.next("version change"), model, action, (before, default(self)), by);
        self.version_changes.push(noted.clone());
        self.version_changes.retain(|known| known.seq + VERSION_CHANGES_KEPT > noted.seq);
        noted
    }

    pub(super) fn promote(&mut self, id: ModelId, by: Signed) -> Result<VersionChange> {
        let model = self.model(id)?;
        if self.promoted(model.task, model.tenant, &model.name).first().is_some_and(|(_, of)| *of == id) {
            let default = Some(model.version);
            return Ok(change(0, &model, VersionAction::Promoted, (default, default), by));
        }
        self.catalog.version += 1;
        let now = self.catalog.version;
        let why = format!("version {} is the default now", model.version);
        self.overtaken(&model, |_| true, ended(why, &by))?;
        if !self.was_default(&model) {
            self.counted_anew(id, &by);
        }
        if let Some(evidence) = self.evidence.get_mut(&id) {
            evidence.promote = None;
        }
        Ok(self.noted(&model, VersionAction::Promoted, by, |state| state.set_promoted(id, now)))
    }

    pub(super) fn wish(&mut self, id: ModelId, wish: Wish) -> Result<Option<VersionChange>> {
        let model = self.model(id)?;
        let mut evidence = self.evidence.get(&id).cloned().unwrap_or_default();
        let kept = wish.upon(&mut evidence)?;
        if matches!(kept, WishKept::Nobody) {
            return Ok(None);
        }
        self.evidence.insert(id, evidence);
        self.catalog.version += 1; // or nobody looks for it
        let default = self.promoted(model.task, model.tenant, &model.name).first().map(|(_, of)| *of);
        match kept {
            WishKept::Granted(by) if default != Some(id) => self.promote(id, by).map(Some),
            WishKept::Granted(_) | WishKept::Changed | WishKept::Nobody => Ok(None),
        }
    }

    fn was_default(&self, model: &Model) -> bool {
        let its = |change: &&VersionChange| {
            (change.task, change.name.as_str(), change.version)
                == (model.task, model.name.as_str(), model.version)
        };
        let done = self.version_changes.iter().rev().filter(its).map(|change| (change.action, change.after));
        model.promoted > 0 || was_default(model.version, done)
    }

    pub(super) fn roll_back(&mut self, id: ModelId, by: Signed) -> Result<VersionChange> {
        let model = self.model(id)?;
        let promoted = self.promoted(model.task, model.tenant, &model.name);
        if promoted.first().is_none_or(|(_, of)| *of != id) {
            let default = promoted.first().map(|(version, _)| *version);
            return Err(Error::not_default(model.name, model.version, default));
        }
        if promoted.len() < 2 {
            return Err(Error::NothingBefore { name: model.name, version: model.version });
        }
        let why = format!("version {} was taken back and is not the default any more", model.version);
        self.overtaken(&model, |_| true, ended(why, &by))?;
        Ok(self.noted(&model, VersionAction::RolledBack, by, |state| state.set_promoted(id, 0)))
    }
}

fn change(
    seq: u64,
    model: &Model,
    action: VersionAction,
    (before, after): (Option<u32>, Option<u32>),
    by: Signed,
) -> VersionChange {
    let (task, name, version) = (model.task, model.name.clone(), model.version);
    VersionChange { seq, task, name, version, action, before, after, by }
}
