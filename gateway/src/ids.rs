//! Names of queries as users see them: they carry the variant that answered and the label that it answered with, signed, so that
//! feedback on an answer needs no look-up and cannot be forged.
//!
//! base64url of: version, variant, moment, number, label, and the first 16 bytes of an HMAC-SHA256 over all of them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderName, HeaderValue};
use modelless_decision::trial::Arm;
use modelless_types::{QueryNumber, VariantId};
use sha2::Sha256;
use std::fmt;

const VERSION: u8 = 2;
/// Of the byte with the version, where the arm stands.
const ARMS: u8 = 0xc0;
const PAYLOAD: usize = 1 + 4 + 8 + 8 + 2;
const TAG: usize = 16;
/// 39 bytes in base64.
const TEXT: usize = 52;
/// Stands for no label.
const NO_LABEL: u16 = u16::MAX;

/// The name of the secret in the store.
pub(crate) const SECRET: &str = "query-ids";

/// That of answers that are given again.
pub(crate) const SECRET_CACHE: &str = "cache";

/// What a query's name says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueryId {
    /// Who answered.
    pub variant: VariantId,
    /// When, in microseconds since 1970.
    pub at_unix_us: u64,
    /// Tells apart what one gateway answered in the same microsecond.
    pub number: u64,
    /// Whose it was, of the two that were compared in a trial.
    pub arm: Option<Arm>,
    /// With which label, by its position in the task's: the best, where the answer has several.
    pub label: Option<u16>,
}

/// The name was not given out here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadQueryId {
    /// It does not look like one.
    #[error(
        "this is no query id: expected {TEXT} letters, digits, `-` and `_`, as given in `modelless-query-id`"
    )]
    Malformed,
    /// Its signature is wrong.
    #[error("this query id was not given out here, or was changed since")]
    Forged,
}

/// Where an answer or a refusal tells its query's number.
pub(crate) const NUMBER: HeaderName = HeaderName::from_static("modelless-query");

/// A query's number as a header tells it.
pub(crate) fn number_header(number: QueryNumber) -> HeaderValue {
    let mut digits = [0; 16];
    for (at, digit) in digits.iter_mut().enumerate() {
        let four = number.0 >> (60 - 4 * at) & 0xf;
        *digit = b"0123456789abcdef"[usize::try_from(four).unwrap_or(0)];
    }
    HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static("0"))
}

const fn arm_bits(arm: Option<Arm>) -> u8 {
    match arm {
        None => 0,
        Some(Arm::Candidate) => 0x40,
        Some(Arm::Other) => 0x80,
    }
}

/// Gives out and checks the names of queries.
#[derive(Clone)]
pub struct QueryIds {
    /// Keyed once; a copy of the keyed state is cheaper than keying anew.
    mac: Hmac<Sha256>,
}

impl QueryIds {
    /// With the secret of the store.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self { mac: Hmac::new_from_slice(secret).expect("HMAC takes keys of any length; this is a bug") }
    }

    /// The name of a query that was answered.
    pub fn issue(&self, id: QueryId) -> String {
        let mut bytes = [0; PAYLOAD + TAG];
        bytes[0] = VERSION | arm_bits(id.arm);
        bytes[1..5].copy_from_slice(&id.variant.0.to_le_bytes());
        bytes[5..13].copy_from_slice(&id.at_unix_us.to_le_bytes());
        bytes[13..21].copy_from_slice(&id.number.to_le_bytes());
        bytes[21..PAYLOAD].copy_from_slice(&id.label.unwrap_or(NO_LABEL).to_le_bytes());
        let tag = self.mac.clone().chain_update(&bytes[..PAYLOAD]).finalize().into_bytes();
        bytes[PAYLOAD..].copy_from_slice(&tag[..TAG]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// What a name says, if it was given out with this secret.
    pub fn verify(&self, text: &str) -> Result<QueryId, BadQueryId> {
        if text.len() != TEXT {
            return Err(BadQueryId::Malformed);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| BadQueryId::Malformed)?;
        let (payload, tag) = bytes.split_at_checked(PAYLOAD).ok_or(BadQueryId::Malformed)?;
        // In constant time, so that a signature cannot be found byte by byte.
        let mac = self.mac.clone().chain_update(payload);
        mac.verify_truncated_left(tag).map_err(|_| BadQueryId::Forged)?;
        let arm = payload[0] & ARMS;
        if payload[0] & !ARMS != VERSION || tag.len() != TAG {
            return Err(BadQueryId::Malformed);
        }
        let number = |at: usize| payload[at..at + 8].try_into().map(u64::from_le_bytes);
        let variant = payload[1..5].try_into().map(u32::from_le_bytes);
        let label = payload[21..23].try_into().map(u16::from_le_bytes);
        let (Ok(variant), Ok(at_unix_us), Ok(number), Ok(label)) = (variant, number(5), number(13), label)
        else {
            return Err(BadQueryId::Malformed);
        };
        let label = (label != NO_LABEL).then_some(label);
        let arm =
            [Some(Arm::Candidate), Some(Arm::Other)].into_iter().find(|of| arm_bits(*of) == arm).flatten();
        Ok(QueryId { variant: VariantId(variant), at_unix_us, number, arm, label })
    }
}

impl fmt::Debug for QueryIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueryIds(..)") // never the secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: QueryId = QueryId {
        variant: VariantId(7),
        at_unix_us: 1_790_000_000_000_000,
        number: 42,
        arm: None,
        label: Some(3),
    };

    #[test]
    fn says_again_what_it_was_given() {
        let ids = QueryIds::new(&[3; 32]);
        let text = ids.issue(ID);
        assert_eq!(text.len(), TEXT);
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
        assert_eq!(ids.verify(&text), Ok(ID));
        assert_ne!(text, ids.issue(QueryId { number: 43, ..ID }));
        let none = QueryId { label: None, ..ID };
        assert_eq!(ids.verify(&ids.issue(none)), Ok(none));
    }

    #[test]
    fn no_change_of_any_character_passes() {
        let ids = QueryIds::new(&[3; 32]);
        let text = ids.issue(ID);
        for at in 0..TEXT {
            for other in ["A", "z", "_", "7"] {
                let mut forged = text.clone();
                forged.replace_range(at..=at, other);
                assert!(forged == text || ids.verify(&forged).is_err(), "{forged}");
            }
        }
    }

    #[test]
    fn another_secret_another_length_and_junk_are_refused() {
        let text = QueryIds::new(&[3; 32]).issue(ID);
        let ids = QueryIds::new(&[4; 32]);
        assert_eq!(ids.verify(&text), Err(BadQueryId::Forged));
        for junk in ["", "x", &text[1..], &format!("{text}A"), &"=".repeat(TEXT), &"é".repeat(26)] {
            assert_eq!(ids.verify(junk), Err(BadQueryId::Malformed), "{junk}");
        }
        // A shorter tag is not a weaker signature that passes.
        let own = QueryIds::new(&[3; 32]);
        assert!(own.verify(&text[..TEXT - 4]).is_err());
    }

    #[test]
    fn the_secret_is_not_shown() {
        assert_eq!(format!("{:?}", QueryIds::new(&[9; 32])), "QueryIds(..)");
    }

    #[test]
    fn a_number_is_the_same_wherever_it_stands() {
        for number in [0, 7, 0x0123_4567_89ab_cdef, u64::MAX] {
            let number = QueryNumber(number);
            assert_eq!(number_header(number).to_str().unwrap(), number.to_string());
        }
        assert_eq!(QueryNumber(0xbeef).to_string(), "000000000000beef");
    }
}
