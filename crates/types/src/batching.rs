//! How queries of a task share batches.

use crate::units::Micros;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// When a batch is closed, and over how many. Written as `deadline`, `aimd`, `off` or `fixed:SIZE:WAIT`, such as
/// `fixed:16:5ms`, wherever somebody can set it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Batching {
    /// As large as deadlines allow and throughput needs, bound as late as possible.
    #[default]
    Deadline,
    /// Additive increase, multiplicative decrease: the largest batch grows by one until a batch takes longer than its
    /// members' latency bound, then shrinks by a tenth.
    Aimd,
    /// As soon as `size` queries wait, or one has waited for `wait`.
    Fixed {
        /// The batch that is waited for, and the largest.
        size: u32,
        /// The longest that a query waits for others.
        wait: Micros,
    },
    /// Every query alone.
    Off,
}

impl Batching {
    /// The largest `size` of a fixed batch.
    pub const LARGEST: u32 = 4_096;
    /// The longest `wait` of a fixed batch.
    pub const LONGEST: Micros = Micros::from_secs(10);
}

impl fmt::Display for Batching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("deadline"),
            Self::Aimd => f.write_str("aimd"),
            Self::Off => f.write_str("off"),
            Self::Fixed { size, wait } if wait.0.is_multiple_of(1_000) => {
                write!(f, "fixed:{size}:{}ms", wait.0 / 1_000)
            }
            Self::Fixed { size, wait } => write!(f, "fixed:{size}:{}us", wait.0),
        }
    }
}

impl FromStr for Batching {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            Err(format!(
                "`{text}` {what}; write `deadline`, `aimd`, `off` or `fixed:SIZE:WAIT`, such as `fixed:16:5ms`"
            ))
        };
        match text {
            "deadline" => return Ok(Self::Deadline),
            "aimd" => return Ok(Self::Aimd),
            "off" => return Ok(Self::Off),
            _ => {}
        }
        let Some((size, wait)) = text.strip_prefix("fixed:").and_then(|rest| rest.split_once(':')) else {
            return wrong("is not a way of batching");
        };
        let (digits, unit) = match (wait.strip_suffix("ms"), wait.strip_suffix("us")) {
            (Some(digits), _) => (digits, 1_000),
            (None, Some(digits)) => (digits, 1),
            (None, None) => return wrong("gives its wait no unit (`ms` or `us`)"),
        };
        let (Ok(size), Ok(wait)) = (size.parse::<u32>(), digits.parse::<u64>()) else {
            return wrong("needs whole numbers");
        };
        let wait = Micros(wait.saturating_mul(unit));
        if !(1..=Self::LARGEST).contains(&size) {
            return wrong("needs a size from 1 to 4096");
        }
        if wait > Self::LONGEST {
            return wrong("waits longer than the 10 s that are allowed");
        }
        Ok(Self::Fixed { size, wait })
    }
}

impl TryFrom<String> for Batching {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Batching> for String {
    fn from(batching: Batching) -> Self {
        batching.to_string()
    }
}

/// What a task that is there is told of its batches: a way of its own, or `node`, which is as each node is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TaskBatching {
    /// As each node is set.
    #[default]
    AsNode,
    /// This way, on every node.
    Own(Batching),
}

impl TaskBatching {
    const AS_NODE: &str = "node";

    /// As a task has it.
    pub const fn own(self) -> Option<Batching> {
        match self {
            Self::AsNode => None,
            Self::Own(batching) => Some(batching),
        }
    }
}

impl fmt::Display for TaskBatching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsNode => f.write_str(Self::AS_NODE),
            Self::Own(batching) => fmt::Display::fmt(batching, f),
        }
    }
}

impl FromStr for TaskBatching {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == Self::AS_NODE {
            return Ok(Self::AsNode);
        }
        let own = text.parse::<Batching>().map(Self::Own);
        own.map_err(|why| format!("{why}; or `{}`: as each node is set", Self::AS_NODE))
    }
}

impl TryFrom<String> for TaskBatching {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TaskBatching> for String {
    fn from(batching: TaskBatching) -> Self {
        batching.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let fixed = |size, us| Batching::Fixed { size, wait: Micros(us) };
        for mode in [Batching::Deadline, Batching::Aimd, Batching::Off, fixed(16, 5_000), fixed(1, 250)] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("fixed:16:5ms".parse(), Ok(fixed(16, 5_000)));
        for told in [TaskBatching::AsNode, TaskBatching::Own(fixed(16, 5_000))] {
            assert_eq!(told.to_string().parse(), Ok(told));
        }
        assert_eq!("node".parse(), Ok(TaskBatching::AsNode));
    }

    #[test]
    fn what_is_wrong_is_told_with_what_would_be_right() {
        for text in
            ["", "Deadline", "fixed", "fixed:8", "fixed:8:5", "fixed:x:5ms", "fixed:0:1ms", "fixed:9999:1ms"]
        {
            let why = text.parse::<Batching>().expect_err("not a way of batching");
            assert!(why.contains("fixed:16:5ms"), "{why}");
            let why = text.parse::<TaskBatching>().expect_err("nor is it here");
            assert!(why.contains("fixed:16:5ms") && why.contains("`node`"), "{why}");
        }
        assert!("fixed:8:11000ms".parse::<Batching>().expect_err("too long").contains("10 s"));
    }
}
