//! Five minutes of the clock, and what was asked in them: what the same time of other days is compared by.

use crate::units::{Micros, Time};
use core::fmt;
use serde::{Deserialize, Serialize};

/// Five minutes, by their number since 1970 in UTC. No time zone has a say: where clocks are moved, what comes at the same hour of
/// theirs comes in another slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub u32);

impl Slot {
    /// How long one is.
    pub const LONG: Micros = Micros::from_secs(300);
    /// How many a day has.
    pub const A_DAY: u32 = 288;

    /// The one that a moment lies in, counted in microseconds since 1970.
    pub fn of(at: Time) -> Self {
        Self(u32::try_from(at.0 / Self::LONG.0).unwrap_or(u32::MAX))
    }

    /// When it begins.
    pub fn starts(self) -> Time {
        Time(u64::from(self.0) * Self::LONG.0)
    }

    /// The same time of day, so many days earlier. `None` before 1970.
    pub fn days_before(self, days: u32) -> Option<Self> {
        Some(Self(self.0.checked_sub(days.checked_mul(Self::A_DAY)?)?))
    }
}

/// Its time of day, in UTC.
impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.0 % Self::A_DAY * 5;
        write!(f, "{:02}:{:02} UTC", minutes / 60, minutes % 60)
    }
}

/// What was asked of one task in a slot, as far as somebody saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Bin {
    /// The most that came for five seconds, in queries per 1,000 seconds.
    pub peak_per_1000_s: u64,
    /// Queries in all; at least so many, where nobody saw all of it.
    pub queries: u64,
}

impl Bin {
    /// Of two that saw the same slot, what each saw most of: saying it again, or by many, changes nothing.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self {
            peak_per_1000_s: self.peak_per_1000_s.max(other.peak_per_1000_s),
            queries: self.queries.max(other.queries),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn a_slot_has_a_time_of_day_that_is_the_same_on_every_day() {
        let nine = Slot(20_000 * Slot::A_DAY + 9 * 12);
        assert_eq!((nine.to_string().as_str(), Slot::of(nine.starts())), ("09:00 UTC", nine));
        assert_eq!(Slot::of(Time(nine.starts().0 - 1)).to_string(), "08:55 UTC");
        let before = nine.days_before(7).expect("there was one");
        assert_eq!((before.to_string().as_str(), nine.0 - before.0), ("09:00 UTC", 7 * 288));
        assert_eq!((Slot(287).days_before(1), Slot(288).days_before(1)), (None, Some(Slot(0))));
        assert_eq!((Slot::of(Time::FAR), nine.days_before(u32::MAX)), (Slot(u32::MAX), None));
    }
}
