//! The states of a machine that is rented by the hour.

use serde::{Deserialize, Serialize};

/// A machine of a pool: where it stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    /// It is written down that it is wanted; whether its provider was asked, or heard it, is not known.
    Asked,
    /// Its provider has it; its node has not joined.
    Starting,
    /// Its node is there.
    Joined,
    /// It takes nothing new and ends what it has.
    Draining,
    /// Its provider is asked to take it away.
    Stopping,
    /// It is not there any more, as was wanted.
    Gone,
    /// It never came, or ended although nobody asked it to.
    Failed,
}

impl MachineState {
    /// Every state.
    pub const ALL: [Self; 7] =
        [Self::Asked, Self::Starting, Self::Joined, Self::Draining, Self::Stopping, Self::Gone, Self::Failed];

    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Starting => "starting",
            Self::Joined => "joined",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Gone => "gone",
            Self::Failed => "failed",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether there is nothing more to come.
    pub const fn ended(self) -> bool {
        matches!(self, Self::Gone | Self::Failed)
    }

    /// Whether it serves, or will.
    pub const fn stays(self) -> bool {
        matches!(self, Self::Asked | Self::Starting | Self::Joined)
    }

    /// Which state may follow.
    pub const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Asked, Self::Starting | Self::Gone | Self::Failed)
            | (Self::Starting, Self::Joined | Self::Stopping | Self::Failed)
            | (Self::Joined, Self::Draining | Self::Stopping | Self::Failed)
            | (Self::Draining, Self::Stopping | Self::Gone)
            | (Self::Stopping, Self::Gone | Self::Failed) => true,
            (
                Self::Asked
                | Self::Starting
                | Self::Joined
                | Self::Draining
                | Self::Stopping
                | Self::Gone
                | Self::Failed,
                _,
            ) => false,
        }
    }
}
