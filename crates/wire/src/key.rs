//! The cluster's key: whoever connects proves that it has it, and so does whoever is connected to.
//!
//! Each side draws a number that is used once; the other answers with an HMAC-SHA256 over both numbers, its side and its role.
//! The key itself never leaves a process, a recorded greeting is of no use later, and a proof of one side is none of the
//! other. What comes after the greeting is neither signed nor encrypted (`docs/adr/0057-key-of-a-cluster.md`).

use crate::codec::Role;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// The shortest key that is taken.
pub const KEY_BYTES: usize = 16;
const NONCE_BYTES: usize = 16;

/// A secret that all processes of a cluster share.
#[derive(Clone)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// From its bytes, of which there must be enough that nobody guesses them.
    pub fn new(secret: &[u8]) -> Result<Self, String> {
        if secret.len() < KEY_BYTES {
            return Err(format!(
                "the cluster's key has {} bytes; it must have at least {KEY_BYTES}, such as those of \
                 `openssl rand -hex 32`",
                secret.len()
            ));
        }
        Ok(Self(secret.into()))
    }

    fn mac(&self, side: Proves, asked: &str, own: &str, role: Role) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length; this is a bug");
        let role = serde_json::to_string(&role).expect("a role is plain data; this is a bug");
        // Each part with its length, so that no two different greetings are one text.
        for part in ["modelless wire 1", side.name(), asked, own, &role] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part.as_bytes());
        }
        mac
    }

    /// The proof of a side that was asked with one number and drew the other.
    pub(crate) fn proof(&self, side: Proves, asked: &str, own: &str, role: Role) -> String {
        hex(&self.mac(side, asked, own, role).finalize().into_bytes())
    }

    /// Whether a proof is right. Takes the same time wherever it is wrong.
    pub(crate) fn holds(&self, side: Proves, asked: &str, own: &str, role: Role, proof: &str) -> bool {
        bytes(proof).is_some_and(|proof| self.mac(side, asked, own, role).verify_slice(&proof).is_ok())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(...)")
    }
}

/// Who proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proves {
    Connecting,
    Connected,
}

impl Proves {
    const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected to",
        }
    }
}

/// A number that is used once.
pub(crate) fn nonce() -> Result<String, getrandom::Error> {
    let mut drawn = [0; NONCE_BYTES];
    getrandom::fill(&mut drawn)?;
    Ok(hex(&drawn))
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a String takes everything");
    }
    text
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_side_its_numbers_its_role_and_its_key_only() {
        let key = Key::new(b"0123456789abcdef").unwrap();
        let proof = key.proof(Proves::Connecting, "a", "b", Role::Gateway);
        assert!(key.holds(Proves::Connecting, "a", "b", Role::Gateway, &proof));
        assert!(!key.holds(Proves::Connected, "a", "b", Role::Gateway, &proof), "a mirror proves nothing");
        assert!(!key.holds(Proves::Connecting, "c", "b", Role::Gateway, &proof), "nor does an old one");
        assert!(!key.holds(Proves::Connecting, "ab", "", Role::Gateway, &proof));
        assert!(!key.holds(Proves::Connecting, "a", "b", Role::Scheduler, &proof));
        let other = Key::new(b"0123456789abcdeF").unwrap();
        assert!(!other.holds(Proves::Connecting, "a", "b", Role::Gateway, &proof));
        for wrong in ["", "zz", "\u{e9}\u{e9}", &proof[..10]] {
            assert!(!key.holds(Proves::Connecting, "a", "b", Role::Gateway, wrong), "{wrong}");
        }
    }

    #[test]
    fn a_short_key_is_refused_and_none_is_shown() {
        assert!(Key::new(b"short").unwrap_err().contains("at least 16"));
        assert_eq!(format!("{:?}", Key::new(b"0123456789abcdef").unwrap()), "Key(...)");
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }
}
