//! For how long a task's variants stay in memory after its last query.

use crate::spans;
use crate::units::Micros;
use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// The shortest. What several schedulers see may lie a few seconds apart, and they must not take turns at waking what another
/// has just put to sleep.
const LEAST_S: u32 = 5;
/// The longest: thirty days.
const MOST_S: u32 = 30 * 86_400;

/// For how long variants stay in memory after the last query; always, unless a task says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeepFor(u32);

impl KeepFor {
    /// Whether anybody asks or not.
    pub const ALWAYS: Self = Self(0);

    /// For so many seconds; from 5 s to 30 days.
    pub const fn seconds(seconds: u32) -> Option<Self> {
        if seconds >= LEAST_S && seconds <= MOST_S { Some(Self(seconds)) } else { None }
    }

    /// `None` if always.
    pub const fn time(self) -> Option<Micros> {
        if self.0 == 0 { None } else { Some(Micros::from_secs(self.0 as u64)) }
    }
}

impl fmt::Display for KeepFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("always") } else { spans::write(f, self.0) }
    }
}

impl FromStr for KeepFor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "always" {
            return Ok(Self::ALWAYS);
        }
        spans::read(text).and_then(Self::seconds).ok_or_else(|| {
            format!(
                "{text:?} is no time for which a task is kept in memory; expected always, or 5s to 720h, such as 10m"
            )
        })
    }
}

impl TryFrom<String> for KeepFor {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<KeepFor> for String {
    fn from(keep: KeepFor) -> Self {
        keep.to_string()
    }
}

/// Whether what earlier days tell of a task counts before it is asked for: on, unless a task says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ahead {
    /// What comes at this time of day again is made ready for: the task is awake, its variants come first where room is short, and
    /// machines are there.
    #[default]
    On,
    /// Only what is asked counts.
    Off,
}

impl Ahead {
    /// As shown and stored.
    pub const NAMES: [(&'static str, Self); 2] = [("on", Self::On), ("off", Self::Off)];

    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find_map(|(known, ahead)| (known == name).then_some(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for (text, seconds) in [("5s", 5), ("90s", 90), ("10m", 600), ("24h", 86_400), ("720h", MOST_S)] {
            let keep = KeepFor::seconds(seconds).expect("within bounds");
            assert_eq!((text.parse(), keep.to_string().as_str()), (Ok(keep), text));
            assert_eq!(keep.time(), Some(Micros::from_secs(u64::from(seconds))));
        }
        assert_eq!("always".parse(), Ok(KeepFor::ALWAYS));
        assert_eq!((KeepFor::ALWAYS.to_string().as_str(), KeepFor::ALWAYS.time()), ("always", None));
    }

    #[test]
    fn whether_earlier_days_count_is_on_unless_it_is_off() {
        for (name, ahead) in Ahead::NAMES {
            assert_eq!((ahead.name(), Ahead::parse(name)), (name, Some(ahead)));
        }
        assert_eq!((Ahead::default(), Ahead::parse("maybe")), (Ahead::On, None));
    }

    #[test]
    fn what_is_wrong_is_told_with_what_would_be_right() {
        for text in ["", "0s", "4s", "off", "60", "721h", "-5s", "05s", "5 m", "4294967295h"] {
            let why = text.parse::<KeepFor>().expect_err("no time");
            assert!(why.contains("10m"), "{why}");
        }
        assert_eq!((KeepFor::seconds(4), KeepFor::seconds(MOST_S + 1)), (None, None));
    }
}
