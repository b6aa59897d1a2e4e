//! A decimal in JSON to a float, quickly where that is certain to be right.
//!
//! Most numbers have few digits: their figures, as an integer, and a power of ten are both (nearly) exact as
//! doubles, so one multiplication gives the value to within two units in the last place. For single precision
//! that decides the rounding unless the value lies right at the middle between two; then, and for everything
//! unusual, the standard library's full algorithm is asked. It costs three times as much.

/// Powers of ten that are exact as doubles.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// Figures up to here are exact as doubles.
const EXACT: u64 = 1 << 53;

/// A number as it is written: `figures x 10^exponent`, and how many bytes it has.
struct Written {
    negative: bool,
    figures: u64,
    exponent: i32,
    length: usize,
}

/// `None` where it is unusual: more than 19 figures, a large exponent, or no number at all.
#[expect(clippy::inline_always, reason = "called once per number; the call costs as much as the work")]
#[inline(always)]
fn written(text: &[u8]) -> Option<Written> {
    let negative = text.first() == Some(&b'-');
    let start = usize::from(negative);
    let (mut figures, mut at) = (0_u64, start);
    let mut digits = |at: &mut usize| {
        while let Some(value) = text.get(*at..).and_then(|rest| rest.first_chunk()).copied().and_then(eight) {
            figures = figures.wrapping_mul(100_000_000).wrapping_add(value);
            *at += 8;
        }
        while let Some(digit) = text.get(*at).map(|b| b.wrapping_sub(b'0')).filter(|d| *d < 10) {
            figures = figures.wrapping_mul(10).wrapping_add(u64::from(digit));
            *at += 1;
        }
    };
    digits(&mut at);
    let (mut count, mut exponent) = (at - start, 0);
    if text.get(at) == Some(&b'.') {
        let point = at + 1;
        at = point;
        digits(&mut at);
        exponent = -i32::try_from(at - point).ok()?;
        count += at - point;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        let sign = text.get(at + 1);
        let first = at + 1 + usize::from(matches!(sign, Some(b'-' | b'+')));
        let length = text.get(first..)?.iter().take_while(|b| b.is_ascii_digit()).count();
        let size = text.get(first..first + length).filter(|t| t.len() <= 3)?;
        let size = size.iter().fold(0, |n, b| n * 10 + i32::from(b - b'0'));
        exponent += if sign == Some(&b'-') { -size } else { size };
        at = first + length;
    }
    let ends = matches!(text.get(at), None | Some(b',' | b']' | b' ' | b'\n' | b'\r' | b'\t'));
    // Nineteen figures cannot have wrapped around.
    (ends && (1..=19).contains(&count)).then_some(Written { negative, figures, exponent, length: at })
}

/// Eight digits at once: in pairs, then fours, then all. `None` unless all of them are digits.
#[inline]
fn eight(text: [u8; 8]) -> Option<u64> {
    let bytes = u64::from_le_bytes(text);
    let digits = bytes ^ 0x3030_3030_3030_3030; // every digit becomes 0 to 9, everything else more
    if (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    let pairs = (digits.wrapping_mul(10).wrapping_add(digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100).wrapping_add(pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours.wrapping_mul(10_000).wrapping_add(fours >> 32)) & 0xffff_ffff)
}

/// The value to within two units in the last place; exactly rounded where the figures are exact.
#[expect(clippy::cast_precision_loss, reason = "accounted for above")]
fn near(number: &Written) -> Option<f64> {
    let power = *POWERS.get(usize::try_from(number.exponent.unsigned_abs()).ok()?)?;
    let figures = number.figures as f64;
    let value = if number.exponent < 0 { figures / power } else { figures * power };
    Some(if number.negative { -value } else { value })
}

/// Reads the number that `text` begins with, if it is sure of it: the value and how many bytes it took.
#[inline]
pub(super) fn single(text: &[u8]) -> Option<(f32, usize)> {
    let number = written(text)?;
    let value = near(&number)?;
    // The middle between two neighbouring singles has exactly the highest of the 29 bits that are cut off.
    let beyond = value.to_bits() & 0x1fff_ffff;
    let usual = (f64::from(f32::MIN_POSITIVE)..f64::from(f32::MAX)).contains(&value.abs());
    let sure = number.figures == 0 || (usual && beyond.abs_diff(0x1000_0000) > 4);
    #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is the point")]
    sure.then_some((value as f32, number.length))
}

/// The same in double precision.
#[inline]
pub(super) fn double(text: &[u8]) -> Option<(f64, usize)> {
    let number = written(text)?;
    let value = near(&number)?;
    (number.figures <= EXACT).then_some((value, number.length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str) {
        if let Some((value, length)) = single(text.as_bytes()) {
            assert_eq!(length, text.len(), "{text}");
            assert_eq!(value.to_bits(), text.parse::<f32>().unwrap().to_bits(), "{text}");
        }
        if let Some((value, length)) = double(text.as_bytes()) {
            assert_eq!(length, text.len(), "{text}");
            assert_eq!(value.to_bits(), text.parse::<f64>().unwrap().to_bits(), "{text}");
        }
    }

    #[test]
    fn what_is_usual_is_read_quickly() {
        for text in ["0", "-0", "1", "255", "-12.5", "0.003921569", "1e-7", "2.5E+3", "0.30000000000000004"] {
            assert!(single(text.as_bytes()).is_some(), "{text}");
            check(text);
        }
        for text in ["", "-", "true", "1x", "12345678901234567890", "1e999", "1e-40", "16777217", "null"] {
            assert!(single(text.as_bytes()).is_none(), "{text}");
        }
        assert_eq!(single(b"1.5,2"), Some((1.5, 3)));
        assert_eq!(single(b"-0]").map(|(value, length)| (value.to_bits(), length)), Some((1 << 31, 2)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        /// Never differs from the standard library, wherever it answers at all.
        #[test]
        fn is_right_whenever_it_is_sure(
            text in "-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?",
            bits in any::<u32>(),
            more in -6_i64..6,
        ) {
            check(&text);
            let float = f32::from_bits(bits);
            if float.is_finite() {
                check(&float.to_string());
                check(&format!("{float:e}"));
                // The middle to the next float, and numbers right beside it.
                let middle = f64::midpoint(f64::from(float), f64::from(float.next_up()));
                if middle.is_finite() {
                    let bits = middle.to_bits().saturating_add_signed(more);
                    check(&f64::from_bits(bits).to_string());
                    check(&format!("{:e}", f64::from_bits(bits)));
                    check(&format!("{:.17e}", f64::from_bits(bits)));
                }
            }
        }
    }
}
