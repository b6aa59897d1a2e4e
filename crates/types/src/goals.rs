//! What an application asks for besides an answer. One set of names everywhere; all are optional.

use crate::ids::{ModelId, VariantId};
use crate::units::{Accuracy, CostPer1k, Micros};
use crate::variant_set::VariantSet;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The goals of one query, as resolved by the gateway (defaults of the task not yet applied).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Goals {
    /// The floor: no variant measured below it may answer. Never relaxed.
    pub accuracy: Option<Accuracy>,
    /// From arrival at the gateway to the answer.
    pub latency: Option<Micros>,
    /// Ceiling in dollars per 1,000 queries.
    pub max_cost: Option<CostPer1k>,
    /// What capacity that is already paid for is spent on.
    pub prefer: Option<Prefer>,
    /// Who goes first when not all can.
    pub priority: Priority,
    /// What to do when latency or cost cannot be met.
    pub fallback: Fallback,
    /// Answer with this model only.
    pub model: Option<ModelId>,
    /// Answer with this variant only.
    pub variant: Option<VariantId>,
    /// Only these are there for whoever asks: what a tenant may use of another's task. `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub among: Option<VariantSet>,
}

/// What to make better once floors, deadlines and cost are seen to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefer {
    /// The most accurate variant that is in time.
    #[default]
    Accuracy,
    /// The cheapest.
    Cost,
    /// The fastest.
    Latency,
}

/// What to do when latency or cost goals cannot be met. Accuracy floors are never relaxed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Say no, with the nearest goals that could be met.
    #[default]
    Reject,
    /// Answer as soon and as cheaply as possible instead.
    BestEffort,
}

/// As in Triton: 1 is the highest level, 0 stands for the default level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Priority(u8);

impl Priority {
    /// The level that 0 stands for.
    pub const DEFAULT_LEVEL: u8 = 5;
    /// The lowest level there is.
    pub const LOWEST: u8 = 9;
    /// Above all levels that can be asked for: what is within the share of devices' time that is reserved for its application, while not
    /// all can be answered in time.
    pub const RESERVED: Self = Self(0);
    /// Below all levels that can be asked for: what has it is worked on only while nothing else waits. For inputs of offline jobs.
    pub const SPARE: Self = Self(Self::LOWEST + 1);

    /// From a number as users give it: 0 to 9.
    pub const fn new(level: u8) -> Option<Self> {
        match level {
            0 => Some(Self(Self::DEFAULT_LEVEL)),
            1..=Self::LOWEST => Some(Self(level)),
            _ => None,
        }
    }

    /// From [`Priority::level`].
    pub const fn from_level(level: u8) -> Option<Self> {
        match level {
            0..=Self::LOWEST => Some(Self(level)),
            _ if level == Self::SPARE.0 => Some(Self::SPARE),
            _ => None,
        }
    }

    /// 1 (highest) to 9 (lowest), or that of [`Priority::RESERVED`] or [`Priority::SPARE`].
    pub const fn level(self) -> u8 {
        self.0
    }

    /// Whether only spare time is spent on it.
    pub const fn is_spare(self) -> bool {
        self.0 == Self::SPARE.0
    }

    /// How much an answer in time is worth: each level is worth twice the next.
    pub const fn weight(self) -> u32 {
        if self.is_spare() { 0 } else { 1 << (Self::LOWEST - self.0) }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(Self::DEFAULT_LEVEL)
    }
}

impl Prefer {
    /// Every value, as users write it.
    pub const NAMES: [(&'static str, Self); 3] =
        [("accuracy", Self::Accuracy), ("cost", Self::Cost), ("latency", Self::Latency)];

    /// From its name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
    }
}

impl Fallback {
    /// Every value, as users write it.
    pub const NAMES: [(&'static str, Self); 2] =
        [("reject", Self::Reject), ("best_effort", Self::BestEffort)];

    /// From its name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
    }
}

impl fmt::Display for Prefer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accuracy => "accuracy",
            Self::Cost => "cost",
            Self::Latency => "latency",
        })
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reject => "reject",
            Self::BestEffort => "best_effort",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_zero_is_the_default_level_and_ten_is_none() {
        assert_eq!(Priority::new(0), Some(Priority::default()));
        assert_eq!(Priority::new(10), None, "nobody can ask for spare time only by a number");
        assert_eq!(Priority::from_level(Priority::SPARE.level()), Some(Priority::SPARE));
        assert_eq!(Priority::from_level(0), Some(Priority::RESERVED), "between machines 0 is no default");
        assert!(
            Priority::RESERVED.level() < Priority::new(1).map_or(0, Priority::level),
            "nobody can ask for it"
        );
        assert_eq!(Priority::from_level(11), None);
        assert_eq!(Priority::SPARE.weight(), 0);
        assert!(Priority::new(1).map(Priority::weight) > Priority::new(2).map(Priority::weight));
    }
}
