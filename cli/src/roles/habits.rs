//! How connections between processes behave, as it can be set.

use crate::exit::usage;
use modelless_wire::Config;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where the two ends of a connection have different heartbeats, both keep to the slower one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Habits {
    /// Between heartbeats.
    heartbeat_ms: u64,
    /// So many heartbeats in a row without a word, and the other side is lost.
    missed: u32,
    /// Connecting and greeting take no longer than this.
    handshake_ms: u64,
    /// The first wait before connecting again; it doubles with each failure.
    back_off_ms: u64,
    /// The longest wait.
    back_off_most_ms: u64,
}

impl Default for Habits {
    fn default() -> Self {
        let Config { heartbeat, missed, handshake, back_off, back_off_most, .. } =
            Config::new(|| modelless_types::Time::ZERO);
        let ms = |of: Duration| u64::try_from(of.as_millis()).unwrap_or(u64::MAX);
        Self {
            heartbeat_ms: ms(heartbeat),
            missed,
            handshake_ms: ms(handshake),
            back_off_ms: ms(back_off),
            back_off_most_ms: ms(back_off_most),
        }
    }
}

impl Habits {
    /// Refuses what no connection could live with.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (name, value, least, most) in [
            ("heartbeat_ms", self.heartbeat_ms, 10, 60_000),
            ("missed", self.missed.into(), 1, 1_000),
            ("handshake_ms", self.handshake_ms, 10, 600_000),
            ("back_off_ms", self.back_off_ms, 1, self.back_off_most_ms.min(600_000)),
            ("back_off_most_ms", self.back_off_most_ms, 1, 600_000),
        ] {
            if !(least..=most).contains(&value) {
                return Err(usage(format!(
                    "`wire.{name}` is {value}; expected something from {least} to {most}"
                )));
            }
        }
        Ok(())
    }

    /// The same connection, which behaves like this.
    pub(super) fn of(&self, config: Config) -> Config {
        let ms = Duration::from_millis;
        Config {
            heartbeat: ms(self.heartbeat_ms),
            missed: self.missed,
            handshake: ms(self.handshake_ms),
            back_off: ms(self.back_off_ms),
            back_off_most: ms(self.back_off_most_ms),
            ..config
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_a_connection_does() {
        let plain = || Config::new(|| modelless_types::Time::ZERO);
        let told = |config: Config| format!("{config:?}");
        assert_eq!(told(Habits::default().of(plain())), told(plain()), "the defaults change nothing");
        let set =
            Habits { heartbeat_ms: 11, missed: 12, handshake_ms: 13, back_off_ms: 14, back_off_most_ms: 15 };
        let config = set.of(plain());
        let ms = [config.heartbeat, config.handshake, config.back_off, config.back_off_most];
        assert_eq!(ms.map(|of| of.as_millis()), [11, 13, 14, 15]);
        assert_eq!(config.missed, 12);
    }

    #[test]
    fn what_no_connection_could_live_with_is_refused_by_name() {
        let plain = Habits::default;
        plain().check().unwrap();
        for (name, wrong) in [
            ("wire.heartbeat_ms", Habits { heartbeat_ms: 9, ..plain() }),
            ("wire.heartbeat_ms", Habits { heartbeat_ms: 60_001, ..plain() }),
            ("wire.missed", Habits { missed: 0, ..plain() }),
            ("wire.handshake_ms", Habits { handshake_ms: 0, ..plain() }),
            ("wire.back_off_ms", Habits { back_off_ms: 0, ..plain() }),
            ("wire.back_off_ms", Habits { back_off_ms: 3_000, ..plain() }),
            ("wire.back_off_most_ms", Habits { back_off_most_ms: u64::MAX, ..plain() }),
        ] {
            let why = format!("{:#}", wrong.check().unwrap_err());
            assert!(why.contains(name) && why.contains("expected"), "{why}");
        }
    }
}
