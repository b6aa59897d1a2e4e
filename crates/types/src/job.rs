//! The states of an offline job.

use serde::{Deserialize, Serialize};

/// An offline job: where it stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Its inputs are coming in.
    Receiving,
    /// All its inputs are there, and are worked on when nothing else has to be.
    Running,
    /// Each of its inputs has an output, or a reason why it has none.
    Done,
    /// Somebody ended it before it was done. What was done by then is kept.
    Cancelled,
    /// It could not go on: its task or its application is not there any more. What was done by then is kept.
    Failed,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Receiving, Self::Running, Self::Done, Self::Cancelled, Self::Failed];

    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Receiving => "receiving",
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether there is nothing more to come.
    pub const fn ended(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled | Self::Failed)
    }
}
