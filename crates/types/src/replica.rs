//! The states of a replica. Which may follow which is decided in the `decision` crate.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A variant on a device: where it stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplicaState {
    /// Not in memory.
    Inactive,
    /// On its way into memory.
    Loading,
    /// Serving.
    Active,
    /// Serving, but its queue cannot drain within the tightest deadlines it serves.
    Overloaded,
    /// Serving, but slower than its profile says while its own load is below capacity.
    Interfered,
    /// Finishing what it has; takes nothing new.
    Draining,
    /// Crashed or would not load.
    Failed,
}

impl ReplicaState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Inactive,
        Self::Loading,
        Self::Active,
        Self::Overloaded,
        Self::Interfered,
        Self::Draining,
        Self::Failed,
    ];

    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inactive => "inactive",
            Self::Loading => "loading",
            Self::Active => "active",
            Self::Overloaded => "overloaded",
            Self::Interfered => "interfered",
            Self::Draining => "draining",
            Self::Failed => "failed",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether queries may be given to it.
    pub const fn serves(self) -> bool {
        matches!(self, Self::Active | Self::Overloaded | Self::Interfered)
    }
}

impl fmt::Display for ReplicaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
