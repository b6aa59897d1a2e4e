//! Trials of new versions, as they are written down: that one runs, and how it ended.

use crate::check;
use crate::error::{Error, Result};
use crate::events::{EventKind, NewEvent};
use crate::versions::Signed;
use async_trait::async_trait;
use modelless_types::{Micros, ModelId, Share, TaskId, TrialId, TrialState};
use serde::{Deserialize, Serialize};

/// Of the last so many trials those that ended are remembered.
pub const TRIALS_KEPT: u64 = 1_000;
/// So many run at a time, which is what a gateway tells of; of them a tenant that is not alone gets half.
pub const TRIALS_AT_ONCE: usize = 64;
/// Longest document of figures.
const FIGURES_MAX: usize = 64 << 10;

/// A new version is to be tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTrial {
    /// The version. It must not be the default.
    pub candidate: ModelId,
    /// How much of the task's queries it answers.
    pub share: Share,
    /// Whether it is only asked copies of these, whose answers nobody gets.
    pub shadow: bool,
    /// How long; or for how long at least, if it is to be promoted then.
    pub lasts: Micros,
    /// Whether it becomes the default once it is known to be good.
    pub promote_when_good: bool,
    /// Whether somebody wants that although floors would be lost that are kept now.
    pub forced: bool,
    /// Who wants it.
    pub by: Signed,
}

/// How a trial ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrialEnded {
    /// Why.
    pub cause: String,
    /// What was counted by then, in JSON, where somebody had counted.
    pub figures: Option<String>,
    /// Who says so, and when.
    pub by: Signed,
}

/// A trial.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// Number in the store.
    pub id: TrialId,
    /// The task whose queries are drawn.
    pub task: TaskId,
    /// The models' name.
    pub name: String,
    /// The version on trial.
    pub candidate: ModelId,
    /// Its number.
    pub version: u32,
    /// The default version when it began, which it is compared with.
    pub against: ModelId,
    /// Its number.
    pub against_version: u32,
    /// How much of the task's queries it answers.
    pub share: Share,
    /// Whether it is only asked copies of these, whose answers nobody gets.
    pub shadow: bool,
    /// How long; or for how long at least, if it is to be promoted then.
    pub lasts: Micros,
    /// Whether it becomes the default once it is known to be good.
    pub promote_when_good: bool,
    /// Whether somebody wanted that although floors would be lost.
    pub forced: bool,
    /// Who began it, and when.
    pub began: Signed,
    /// How it stands.
    pub state: TrialState,
    /// How it ended, if it has.
    pub ended: Option<TrialEnded>,
}

/// A trial is to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndTrial {
    /// Which.
    pub trial: TrialId,
    /// How.
    pub state: TrialState,
    /// The version of the catalogue that this was decided by. A promotion is not made by another one.
    pub catalog: u64,
    /// Why, by what, and who says so.
    pub ended: TrialEnded,
}

/// What is written down of trials. Part of a [`crate::Store`]; those that run stand in the catalogue as well.
#[async_trait]
pub trait Trials: Send + Sync {
    /// Begins one. Refused while another of the task runs, and for the default version.
    async fn begin_trial(&self, new: NewTrial) -> Result<Trial>;

    /// Ends one, and promotes its version if that is how it ends. Nothing where it ended before, or where it is to be promoted and the
    /// catalogue is another, or the default is not the one that it was compared with.
    async fn end_trial(&self, end: EndTrial) -> Result<Option<Trial>>;

    /// Ends the trial of a task that runs, whichever that is. Nothing where none does.
    async fn stop_trial(&self, task: TaskId, ended: TrialEnded) -> Result<Option<Trial>>;

    /// The latest trials of a task, or of all, newest first. See [`TRIALS_KEPT`].
    async fn trials(&self, task: Option<TaskId>, limit: u32) -> Result<Vec<Trial>>;
}

impl NewTrial {
    pub(crate) fn check(&self) -> Result<()> {
        check::number("time", self.lasts.0)?;
        check::signed(&self.by)
    }

    /// The trial that this begins.
    pub(crate) fn begun(
        self,
        id: TrialId,
        (task, name, version): (TaskId, String, u32),
        default: Option<(ModelId, u32)>,
    ) -> Result<Trial> {
        let (against, against_version) = default.ok_or_else(|| {
            Error::invalid(
                "trial",
                format!("{name} has no default version to compare version {version} with"),
            )
        })?;
        if against == self.candidate {
            let why =
                format!("version {version} of {name} is the default one, and answers all that is not pinned");
            return Err(Error::invalid("trial", why));
        }
        let Self { candidate, share, shadow, lasts, promote_when_good, forced, by } = self;
        Ok(Trial {
            id,
            task,
            name,
            candidate,
            version,
            against,
            against_version,
            share,
            shadow,
            lasts,
            promote_when_good,
            forced,
            began: by,
            state: TrialState::Running,
            ended: None,
        })
    }
}

/// An end that nobody counted anything for.
pub(crate) fn ended(cause: String, by: &Signed) -> TrialEnded {
    TrialEnded { cause, figures: None, by: by.clone() }
}

impl TrialEnded {
    /// Made storable.
    pub(crate) fn checked(mut self) -> Result<Self> {
        check::storable(&mut self.cause);
        if let Some(figures) = &self.figures {
            check::json("figures", figures)?;
            if figures.len() > FIGURES_MAX {
                return Err(Error::invalid("figures", format!("they are longer than {FIGURES_MAX} bytes")));
            }
        }
        check::signed(&self.by)?;
        Ok(self)
    }
}

impl EndTrial {
    pub(crate) fn checked(self) -> Result<Self> {
        if self.state == TrialState::Running {
            return Err(Error::invalid("trial", "it cannot end as one that runs"));
        }
        Ok(Self { ended: self.ended.checked()?, ..self })
    }
}

impl Trial {
    /// Why another trial of the same task is not begun.
    pub(crate) fn in_the_way(&self) -> Error {
        let Self { name, version, task, .. } = self;
        Error::TrialRuns { task: *task, name: name.clone(), version: *version }
    }

    /// That it began or, once it has ended, how.
    pub(crate) fn event(&self) -> NewEvent {
        let Self { id, name, version, share, against_version, .. } = self;
        let (how, cause, by) = match &self.ended {
            None => {
                let how = if self.shadow { "is asked copies of" } else { "answers" };
                let cause =
                    format!("it {how} {share} of what pins nothing, compared with version {against_version}");
                ("began", cause, &self.began)
            }
            Some(ended) => {
                let how = match self.state {
                    TrialState::Promoted => "promoted",
                    TrialState::RolledBack => "rolled back",
                    TrialState::Running | TrialState::Stopped => "stopped",
                };
                (how, ended.cause.clone(), &ended.by)
            }
        };
        NewEvent {
            kind: EventKind::Trial,
            node: None,
            variant: None,
            task: Some(self.task),
            what: format!("{id} {how}"),
            cause: format!("{name} version {version}: {cause}"),
            who: by.who.clone(),
            at: by.at,
        }
    }
}
