//! A new version on trial: how much of a task's queries it is asked, and how that stands.

use core::fmt;
use serde::{Deserialize, Serialize};

/// How a trial stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialState {
    /// The version answers its share.
    Running,
    /// It did as well, and is the default version since.
    Promoted,
    /// It did worse, and is asked nothing any more unless it is pinned.
    RolledBack,
    /// Its time was over, somebody ended it, or there was nothing left to compare.
    Stopped,
}

impl TrialState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Running, Self::Promoted, Self::RolledBack, Self::Stopped];

    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Promoted => "promoted",
            Self::RolledBack => "rolled_back",
            Self::Stopped => "stopped",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A part of all queries, in parts per million: more than nothing, and at most all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Share(u32);

impl Share {
    /// From parts per million; `None` for none and for more than all.
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm >= 1 && ppm <= 1_000_000 { Some(Self(ppm)) } else { None }
    }

    /// In parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// Between 0 and 1, for people and for output.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

impl TryFrom<u32> for Share {
    type Error = &'static str;
    fn try_from(ppm: u32) -> Result<Self, Self::Error> {
        Self::from_ppm(ppm).ok_or("a share is from 1 to 1,000,000 parts per million")
    }
}

impl From<Share> for u32 {
    fn from(share: Share) -> Self {
        share.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", f64::from(self.0) / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_share_is_more_than_nothing_and_at_most_all() {
        assert_eq!(Share::from_ppm(0), None);
        assert_eq!(Share::from_ppm(1_000_001), None);
        let share = Share::from_ppm(25_000).expect("a fortieth");
        assert_eq!(format!("{share}"), "2.5 %");
        assert!((share.as_f64() - 0.025).abs() < 1e-12);
    }

    #[test]
    fn states_are_found_by_their_names() {
        for state in TrialState::ALL {
            assert_eq!(TrialState::parse(state.name()), Some(state));
        }
        assert_eq!(TrialState::parse("tried"), None);
    }
}
