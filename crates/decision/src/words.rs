//! Figures in the words of people.

use alloc::format;
use alloc::string::String;
use modelless_types::Micros;

/// A time, with as many digits as say something.
pub(crate) fn time(time: Micros) -> String {
    if time < Micros::from_millis(10) {
        format!("{}.{:02} ms", time.0 / 1_000, time.0 % 1_000 / 10)
    } else if time < Micros::from_secs(10) {
        format!("{} ms", time.0 / 1_000)
    } else {
        format!("{} s", time.0 / 1_000_000)
    }
}

/// A span that people wait, in whole seconds, minutes or hours.
pub(crate) fn span(time: Micros) -> String {
    match time.0 / 1_000_000 {
        s if s < 60 || (s < 600 && s % 60 != 0) => format!("{s} s"),
        s if s < 7_200 => format!("{} min", s / 60),
        s => format!("{} h", s / 3_600),
    }
}

/// A rate, of queries per 1,000 seconds, a second.
pub(crate) fn per_second(per_1000_s: u64) -> String {
    match per_1000_s {
        0..10_000 => format!("{}.{}", per_1000_s / 1_000, per_1000_s / 100 % 10),
        more => format!("{}", (more + 500) / 1_000),
    }
}

/// How often something was asked for lately, by the doublings that plans go by.
pub(crate) fn asked(level: u8) -> String {
    match level {
        0 => "hardly asked for lately".into(),
        1 => "asked for once lately".into(),
        level => {
            let least = 1_u64 << (level - 1).min(62);
            format!("asked for {least} to {} times lately", least.saturating_mul(2) - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_as_many_digits_as_say_something() {
        let told = [7, 1_234, 12_345, 9_999_999, 10_000_000].map(|us| time(Micros(us)));
        assert_eq!(told, ["0.00 ms", "1.23 ms", "12 ms", "9999 ms", "10 s"]);
        let told = [3, 90, 300, 720, 10_800].map(|s| span(Micros::from_secs(s)));
        assert_eq!(told, ["3 s", "90 s", "5 min", "12 min", "3 h"]);
        assert_eq!(
            [0, 1, 4].map(asked),
            ["hardly asked for lately", "asked for once lately", "asked for 8 to 15 times lately"]
        );
        assert_eq!([0, 250, 9_990, 10_499, 40_000].map(per_second), ["0.0", "0.2", "9.9", "10", "40"]);
        assert!(asked(u8::MAX).contains("times"));
    }
}
