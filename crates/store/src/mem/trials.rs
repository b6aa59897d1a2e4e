//! Trials of new versions, in memory. Those that run stand in the catalogue, and here are those that ended.

use super::{MemStore, State};
use crate::access::Shared;
use crate::check;
use crate::error::Result;
use crate::trials::{EndTrial, NewTrial, TRIALS_AT_ONCE, TRIALS_KEPT, Trial, TrialEnded, Trials};
use async_trait::async_trait;
use modelless_types::{Model, TaskId, TrialId, TrialState};
use std::cmp::Reverse;

impl State {
    fn end(&mut self, at: usize, state: TrialState, ended: TrialEnded) -> Result<Trial> {
        let running = self.catalog.trials.remove(at);
        let trial = Trial { state, ended: Some(ended), ..running };
        self.note(check::event(trial.event())?);
        self.trials.push(trial.clone());
        Ok(trial)
    }

    /// Another version is the default now, or one of the two is gone.
    pub(super) fn overtaken(
        &mut self,
        of: &Model,
        concerns: impl Fn(&Trial) -> bool,
        ended: TrialEnded,
    ) -> Result<()> {
        let its = |trial: &Trial| (trial.task, &trial.name) == (of.task, &of.name) && concerns(trial);
        if let Some(at) = self.catalog.trials.iter().position(its) {
            self.end(at, TrialState::Stopped, ended)?;
        }
        Ok(())
    }
}

#[async_trait]
impl Trials for MemStore {
    async fn begin_trial(&self, new: NewTrial) -> Result<Trial> {
        new.check()?;
        self.register(|state| {
            let model = state.model(new.candidate)?;
            if let Some(running) = state.catalog.trials.iter().find(|trial| trial.task == model.task) {
                return Err(running.in_the_way());
            }
            let of = |id| state.catalog.models.iter().find(|known| known.id == id).map(|known| known.tenant);
            let running = &state.catalog.trials;
            let own = running.iter().filter(|trial| of(trial.candidate) == Some(model.tenant)).count();
            let (all, tenants) = (running.len(), state.catalog.tenants.len());
            Shared { all, own, tenants }.room("trial", TRIALS_AT_ONCE)?;
            let id = state.next("trial");
            let promoted = state.promoted(model.task, model.tenant, &model.name);
            let default = promoted.first().map(|(version, id)| (*id, *version));
            let trial = new.begun(TrialId(id), (model.task, model.name, model.version), default)?;
            state.trials.retain(|known| known.id.0 + TRIALS_KEPT > id);
            state.note(check::event(trial.event())?);
            state.catalog.trials.push(trial.clone());
            Ok(trial)
        })
    }

    async fn end_trial(&self, wanted: EndTrial) -> Result<Option<Trial>> {
        let EndTrial { trial, state: how, catalog, ended } = wanted.checked()?;
        self.write(|state| {
            let Some(at) = state.catalog.trials.iter().position(|known| known.id == trial) else {
                return Ok(None);
            };
            if how == TrialState::Promoted {
                let running = state.catalog.trials[at].clone();
                let model = state.model(running.candidate)?;
                let promoted = state.promoted(model.task, model.tenant, &model.name);
                if promoted.first().is_none_or(|(_, id)| *id != running.against)
                    || catalog != state.catalog.version
                {
                    return Ok(None);
                }
                let by = ended.by.clone();
                let trial = state.end(at, how, ended)?;
                state.promote(running.candidate, by)?;
                return Ok(Some(trial));
            }
            state.catalog.version += 1;
            state.end(at, how, ended).map(Some)
        })
    }

    async fn stop_trial(&self, task: TaskId, ended: TrialEnded) -> Result<Option<Trial>> {
        let ended = ended.checked()?;
        self.write(|state| {
            let at = state.catalog.trials.iter().position(|known| known.task == task);
            let Some(at) = at else { return Ok(None) };
            state.catalog.version += 1;
            state.end(at, TrialState::Stopped, ended).map(Some)
        })
    }

    async fn trials(&self, task: Option<TaskId>, limit: u32) -> Result<Vec<Trial>> {
        self.read(|state| {
            let all = state.trials.iter().chain(&state.catalog.trials);
            let mut all: Vec<_> = all.filter(|trial| task.is_none_or(|task| trial.task == task)).collect();
            all.sort_by_key(|trial| Reverse(trial.id));
            all.into_iter().take(usize::try_from(limit).unwrap_or(usize::MAX)).cloned().collect()
        })
    }
}
