//! For how long a task's answers may be given again to who asks the very same.

use crate::spans;
use crate::units::Micros;
use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// The longest: a day.
const MOST_S: u32 = 86_400;

/// For how long answers may be given again; not at all unless a task asks for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CacheFor(u32);

impl CacheFor {
    /// Not at all.
    pub const OFF: Self = Self(0);

    /// For so many seconds; at most a day.
    pub const fn seconds(seconds: u32) -> Option<Self> {
        if seconds <= MOST_S { Some(Self(seconds)) } else { None }
    }

    /// `None` if not at all.
    pub const fn time(self) -> Option<Micros> {
        if self.0 == 0 { None } else { Some(Micros::from_secs(self.0 as u64)) }
    }
}

impl fmt::Display for CacheFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("off") } else { spans::write(f, self.0) }
    }
}

impl FromStr for CacheFor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::OFF);
        }
        spans::read(text).filter(|seconds| (1..=MOST_S).contains(seconds)).map(Self).ok_or_else(|| {
            format!("{text:?} is no time for which answers are kept; expected off, or 1s to 24h, such as 60s or 10m")
        })
    }
}

impl TryFrom<String> for CacheFor {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CacheFor> for String {
    fn from(cache: CacheFor) -> Self {
        cache.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for (text, seconds) in [("off", 0), ("1s", 1), ("90s", 90), ("10m", 600), ("24h", 86_400)] {
            let cache = CacheFor::seconds(seconds).expect("at most a day");
            assert_eq!((text.parse(), cache.to_string().as_str()), (Ok(cache), text));
        }
        assert_eq!("60s".parse::<CacheFor>().map(|cache| cache.to_string()), Ok("1m".into()));
        assert_eq!(CacheFor::OFF.time(), None);
        assert_eq!(CacheFor::seconds(2).and_then(CacheFor::time), Some(Micros(2_000_000)));
    }

    #[test]
    fn what_is_wrong_is_told_with_what_would_be_right() {
        for text in ["", "0s", "on", "60", "25h", "-1s", "+1s", "01s", "5 m", "4294967295h"] {
            let why = text.parse::<CacheFor>().expect_err("no time");
            assert!(why.contains("10m"), "{why}");
        }
        assert_eq!(CacheFor::seconds(86_401), None);
    }
}
