//! The trace that a client's request is part of, as W3C's Trace Context tells it.
//!
//! What does not follow the standard to the letter is as if it were not there: a trace that is made up from half a header joins
//! what does not belong together.

use http::HeaderMap;

/// Longer than what the standard asks everybody to pass on.
const STATE_BYTES: usize = 512;

/// Where a request stands in its client's trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Context {
    pub(super) trace: u128,
    /// The client's span.
    pub(super) parent: u64,
    /// Whether the client keeps what it traces.
    pub(super) sampled: bool,
    /// What others want to find again, passed on unread.
    pub(super) state: String,
}

impl Context {
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all("traceparent").iter();
        let (parent, None) = (given.next()?, given.next()) else { return None };
        let (trace, parent, sampled) = parse(parent.as_bytes())?;
        Some(Self { trace, parent, sampled, state: state(headers) })
    }
}

/// `00-TRACE-PARENT-FLAGS`; a later version may have more behind that.
fn parse(text: &[u8]) -> Option<(u128, u64, bool)> {
    let (known, rest) = text.split_at_checked(55)?;
    let dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
    let version = hex(&known[..2])?;
    let ends = if version == 0 { rest.is_empty() } else { rest.first().is_none_or(|next| *next == b'-') };
    if !dashes || version == 0xff || !ends {
        return None;
    }
    let (trace, parent) = (hex(&known[3..35])?, hex(&known[36..52])?);
    let flags = hex(&known[53..55])?;
    (trace != 0 && parent != 0).then_some((trace, u64::try_from(parent).ok()?, flags & 1 == 1))
}

/// Small letters only, as the standard has it.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

/// All of it, or none where that would be too long.
fn state(headers: &HeaderMap) -> String {
    let mut all = String::new();
    for part in headers.get_all("tracestate") {
        let Ok(part) = part.to_str() else { return String::new() };
        if all.len() + part.len() + 1 > STATE_BYTES {
            return String::new();
        }
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(part);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn of(parents: &[&str], states: &[&str]) -> Option<Context> {
        let mut headers = HeaderMap::new();
        for text in parents {
            headers.append("traceparent", text.parse().unwrap());
        }
        for text in states {
            headers.append("tracestate", text.parse().unwrap());
        }
        Context::of(&headers)
    }

    #[test]
    fn a_clients_trace_is_read() {
        let context = of(&[GOOD], &["a=1", "b=2"]).unwrap();
        assert_eq!(context.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((context.parent, context.sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(context.state, "a=1,b=2");
        let not_kept = of(&[&GOOD.replace("-01", "-02")], &[]).unwrap();
        assert!(!not_kept.sampled, "only the lowest bit says so");
        // Of a later version what is known counts.
        assert!(of(&[&GOOD.replacen("00", "cc", 1)], &[]).is_some());
        assert!(of(&[&format!("{}-more", GOOD.replacen("00", "cc", 1))], &[]).is_some());
    }

    #[test]
    fn what_does_not_follow_the_standard_is_as_if_it_were_not_there() {
        for wrong in [
            "",
            "00",
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &format!("{GOOD}0"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replace('-', "_"),
            &GOOD.replace("4bf9", "4bg9"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            &format!("{}more", GOOD.replacen("00", "cc", 1)),
        ] {
            assert_eq!(of(&[wrong], &[]), None, "{wrong}");
        }
        assert_eq!(of(&[GOOD, GOOD], &[]), None);
        assert_eq!(of(&[], &["a=1"]), None);
    }

    #[test]
    fn a_state_that_is_too_long_is_left_out_whole() {
        let long = format!("a={}", "x".repeat(400));
        assert_eq!(of(&[GOOD], &[&long]).unwrap().state, long);
        assert_eq!(of(&[GOOD], &[&long, &long]).unwrap().state, "");
    }
}
