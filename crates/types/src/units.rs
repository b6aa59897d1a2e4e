//! Units. Integers all, so that two machines comparing the same figures always agree.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A moment, in microseconds since an origin that only the shell (or the simulator) that made it knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

/// A length of time in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Time {
    /// Before everything.
    pub const ZERO: Self = Self(0);
    /// After everything: a deadline that never comes.
    pub const FAR: Self = Self(u64::MAX);

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// From whole milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000)
    }

    /// From whole seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000)
    }

    /// In milliseconds, for people.
    #[expect(clippy::cast_precision_loss, reason = "shown to people; 2^53 us is 285 years")]
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1_000.0
    }

    /// Never below zero.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add<Micros> for Time {
    type Output = Self;
    fn add(self, d: Micros) -> Self {
        Self(self.0.saturating_add(d.0))
    }
}

impl Add for Micros {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self(self.0.saturating_add(o.0))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, o: Self) {
        *self = *self + o;
    }
}

impl Sub<Time> for Time {
    type Output = Micros;
    fn sub(self, earlier: Time) -> Micros {
        self.since(earlier)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us < 1_000 => write!(f, "{us} us"),
            us if us < 1_000_000 => write!(f, "{:.2} ms", self.as_millis_f64()),
            _ => write!(f, "{:.2} s", self.as_millis_f64() / 1_000.0),
        }
    }
}

/// An amount of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// From mebibytes.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self(self.0.saturating_add(o.0))
    }
}

impl fmt::Display for Bytes {
    #[expect(clippy::cast_precision_loss, reason = "shown to people with one decimal")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b if b < 1 << 10 => write!(f, "{b} B"),
            b if b < 1 << 20 => write!(f, "{:.1} KiB", b as f64 / 1024.0),
            b if b < 1 << 30 => write!(f, "{:.1} MiB", b as f64 / 1_048_576.0),
            b => write!(f, "{:.1} GiB", b as f64 / 1_073_741_824.0),
        }
    }
}

/// An accuracy between 0 and 1, in parts per million. Measured values are rounded down and floors up, so that
/// rounding can only refuse, never break a floor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Accuracy(u32);

impl TryFrom<u32> for Accuracy {
    type Error = &'static str;
    fn try_from(ppm: u32) -> Result<Self, Self::Error> {
        Self::from_ppm(ppm).ok_or("an accuracy is at most 1,000,000 parts per million")
    }
}

impl From<Accuracy> for u32 {
    fn from(accuracy: Accuracy) -> Self {
        accuracy.0
    }
}

impl Accuracy {
    /// Nothing right.
    pub const ZERO: Self = Self(0);
    /// Everything right.
    pub const ONE: Self = Self(1_000_000);

    /// From parts per million; `None` above one million.
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm <= 1_000_000 { Some(Self(ppm)) } else { None }
    }

    /// `right` out of `of`, rounded down. `None` for an empty set or more right than there are.
    pub fn measured(right: u64, of: u64) -> Option<Self> {
        if of == 0 || right > of {
            return None;
        }
        let ppm = u128::from(right) * 1_000_000 / u128::from(of);
        u32::try_from(ppm).ok().map(Self)
    }

    /// A floor as a user wrote it, read as a decimal so that `0.9155` means exactly that; what is finer than
    /// a millionth is rounded up.
    pub fn parse_floor(text: &str) -> Option<Self> {
        let ppm = parse_decimal(text, 6, Rounding::Up)?;
        u32::try_from(ppm).ok().and_then(Self::from_ppm)
    }

    /// The same for a number that came as a float (JSON): its shortest decimal form is what the user wrote.
    pub fn floor_from_f64(value: f64) -> Option<Self> {
        if value.is_finite() { Self::parse_floor(&format!("{value}")) } else { None }
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

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

/// What a device costs, in micro-dollars per hour.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PricePerHour(pub u64);

/// What queries cost, in nano-dollars per 1,000 queries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CostPer1k(pub u64);

impl CostPer1k {
    /// Device time of one batch x price / batch size, rounded up. A batch of none costs nothing.
    pub fn of_batch(device_time: Micros, price: PricePerHour, batch: u32) -> Self {
        if batch == 0 {
            return Self(0);
        }
        // us * (micro$ / h) * 1000 queries * 1000 nano/micro / (3.6e9 us / h) / batch
        let scaled = u128::from(device_time.0) * u128::from(price.0) * 1_000_000;
        let divisor = 3_600_000_000 * u128::from(batch);
        Self(u64::try_from(scaled.div_ceil(divisor)).unwrap_or(u64::MAX))
    }

    /// A ceiling in dollars per 1,000 queries as a user wrote it; what is finer than a nano-dollar is dropped.
    pub fn parse_usd(text: &str) -> Option<Self> {
        parse_decimal(text, 9, Rounding::Down).map(Self)
    }

    /// The same for a number that came as a float (JSON).
    pub fn from_usd_f64(value: f64) -> Option<Self> {
        if value.is_finite() { Self::parse_usd(&format!("{value}")) } else { None }
    }

    /// In dollars per 1,000 queries, for people and for output.
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    pub fn as_usd(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl PricePerHour {
    /// A price in dollars per hour as a user wrote it.
    pub fn parse_usd(text: &str) -> Option<Self> {
        parse_decimal(text, 6, Rounding::Up).map(Self)
    }

    /// In dollars per hour.
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    pub fn as_usd(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Micros {
    /// A latency in milliseconds as a user wrote it, such as `12.5`; what is finer than a microsecond is dropped.
    pub fn parse_millis(text: &str) -> Option<Self> {
        parse_decimal(text, 3, Rounding::Down).map(Self)
    }

    /// The same for a number that came as a float (JSON).
    pub fn from_millis_f64(value: f64) -> Option<Self> {
        if value.is_finite() { Self::parse_millis(&format!("{value}")) } else { None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    Up,
    Down,
}

/// Reads a plain non-negative decimal (`12`, `0.5`, `.5`, `1e-7`) as an integer count of `10^-digits`.
fn parse_decimal(text: &str, digits: u32, rounding: Rounding) -> Option<u64> {
    let text = text.trim();
    if text.len() > 64 {
        return None;
    }
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        // As far as floats reach, whose shortest form may say so.
        Some((m, e)) => (m, i32::from_str(e).ok().filter(|e| (-400..=400).contains(e))?),
        None => (text, 0),
    };
    let mantissa = mantissa.strip_prefix('+').unwrap_or(mantissa);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let figures: String = [whole, fraction].concat();
    if !figures.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // The value is `figures` x 10^shift counted in units of 10^-digits.
    let shift = exponent + i32::try_from(digits).ok()? - i32::try_from(fraction.len()).ok()?;
    let figures = figures.trim_start_matches('0');
    if figures.is_empty() {
        return Some(0);
    }
    let keep = i32::try_from(figures.len()).ok()? + shift;
    if keep <= 0 {
        return Some(u64::from(rounding == Rounding::Up));
    }
    let keep = usize::try_from(keep).ok()?;
    if keep > 19 {
        return None;
    }
    let (head, tail) = figures.split_at(keep.min(figures.len()));
    let mut value: u64 = head.parse().ok()?;
    for _ in head.len()..keep {
        value = value.checked_mul(10)?;
    }
    if rounding == Rounding::Up && tail.bytes().any(|b| b != b'0') {
        value = value.checked_add(1)?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_means_exactly_what_was_written() {
        for (text, ppm) in [
            ("0.9155", 915_500),
            ("0.91550000", 915_500),
            ("0.9155001", 915_501),
            ("1", 1_000_000),
            ("1.0", 1_000_000),
            (".5", 500_000),
            ("0", 0),
            ("9e-1", 900_000),
            ("1e-9", 1),
            ("5e-324", 1),
        ] {
            assert_eq!(Accuracy::parse_floor(text).map(Accuracy::ppm), Some(ppm), "{text}");
        }
        for float in [0.9155, 0.1, 0.3, 0.935, 0.9348] {
            let parsed = Accuracy::floor_from_f64(float).expect("a valid floor");
            assert!((parsed.as_f64() - float).abs() < 1e-12, "{float} became {parsed}");
        }
    }

    #[test]
    fn what_is_no_accuracy_is_refused() {
        for text in ["", ".", "-0.1", "1.0000001", "nan", "inf", "0x1", "1e50", "2", "0.5.5", "½"] {
            assert_eq!(Accuracy::parse_floor(text), None, "{text}");
        }
        for float in [f64::NAN, f64::INFINITY, -0.5, 1.5] {
            assert_eq!(Accuracy::floor_from_f64(float), None, "{float}");
        }
    }

    #[test]
    fn a_measured_accuracy_never_rounds_up_to_a_floor() {
        let two_thirds = Accuracy::measured(2, 3).expect("measured");
        assert_eq!(two_thirds.ppm(), 666_666);
        assert!(Accuracy::parse_floor("0.6666666").expect("floor") > two_thirds);
        assert_eq!(Accuracy::measured(0, 0), None);
        assert_eq!(Accuracy::measured(2, 1), None);
    }

    #[test]
    fn a_batch_shares_its_price() {
        let hour = Micros::from_secs(3_600);
        let dollar = PricePerHour(1_000_000);
        assert_eq!(CostPer1k::of_batch(hour, dollar, 1), CostPer1k(1_000 * 1_000_000_000));
        assert_eq!(CostPer1k::of_batch(hour, dollar, 1_000), CostPer1k(1_000_000_000));
        assert_eq!(CostPer1k::of_batch(hour, dollar, 0), CostPer1k(0));
    }

    #[test]
    fn milliseconds_are_read_to_the_microsecond() {
        assert_eq!(Micros::parse_millis("12.5"), Some(Micros(12_500)));
        assert_eq!(Micros::parse_millis("0.0004"), Some(Micros(0)));
        assert_eq!(Micros::parse_millis("1e3"), Some(Micros(1_000_000)));
        assert_eq!(Micros::parse_millis("99999999999999999999"), None);
    }
}
