//! How whole seconds are written in a task's rules: `90s`, `10m`, `24h`.

use core::fmt;

const UNITS: [(&str, u32); 3] = [("s", 1), ("m", 60), ("h", 3_600)];

/// As people write it, in the largest unit that leaves nothing over.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, seconds: u32) -> fmt::Result {
    match seconds {
        s if s % 3_600 == 0 => write!(f, "{}h", s / 3_600),
        s if s % 60 == 0 => write!(f, "{}m", s / 60),
        s => write!(f, "{s}s"),
    }
}

/// The seconds, if that is what is written.
pub(crate) fn read(text: &str) -> Option<u32> {
    UNITS.iter().find_map(|(unit, seconds)| {
        let digits = text.strip_suffix(unit)?;
        // No sign and no zero before it: a time is written in one way.
        let plain = digits.starts_with(|digit: char| digit.is_ascii_digit() && digit != '0');
        let number: u32 = if plain { digits.parse().ok()? } else { return None };
        number.checked_mul(*seconds)
    })
}
