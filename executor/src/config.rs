//! What can be set of an executor.

use crate::node;
use modelless_decision::worker::{DeviceConfig, Foresight, WorkerConfig};
use modelless_engine::{MAX_LANES, MAX_PARTS, ServerFiles};
use modelless_types::{Batching, Bytes, Engine, Micros, PricePerHour};
use modelless_wire::{Hardware, PriceOrigin};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Parts that a batch may be cut into.
#[expect(clippy::cast_possible_truncation, reason = "a handful")]
pub const MOST_PARTS: u16 = MAX_PARTS as u16;
/// The least that a batch on another server may take.
const REMOTE: Micros = Micros::from_secs(5);

/// Settings of one node. Every default is told in `docs/defaults.md`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Unique; a node that comes back under its name is the same node.
    pub name: String,
    /// Machines that are scaled together.
    pub pool: String,
    /// Where machines fail together.
    pub zone: String,
    /// Who says so, or why nothing better is known, for people.
    pub zone_source: String,
    /// Hardware that behaves alike; profiles hold for it.
    pub device_class: String,
    /// Batches that run side by side.
    pub lanes: u16,
    /// Cores of each lane. The device has `lanes` times as many, and is cut otherwise as goals need it.
    pub width: u16,
    /// Memory for replicas.
    pub memory: Bytes,
    /// What an hour of a core costs, and so of a lane of one core.
    pub price: PricePerHour,
    /// Where that price comes from.
    pub price_origin: PriceOrigin,
    /// Servers that variants of the engine `remote` may be on besides this machine, and what is known of them, by their
    /// `HOST:PORT`.
    pub remotes: BTreeMap<String, RemoteServer>,
    /// What an hour of each GPU costs, by its number, with the cores and the memory that feed it. One that is not here
    /// costs what a list says of its name.
    pub gpu_prices: Vec<PricePerHour>,
    /// What it runs on, for people.
    pub hardware: Hardware,
    /// Queries that may wait here.
    pub queue: u32,
    /// Decoded bytes that may wait here.
    pub queue_bytes: Bytes,
    /// Inputs larger than this are decoded on a thread of their own rather than on the one that read them.
    pub decode_inline: Bytes,
    /// The same for writing a batch, by the time it is expected to take.
    pub prepare_inline: Micros,
    /// A query that is alone here and whose batch is expected to take no longer than this is waited for on the thread
    /// that brought it, which saves waking another. Zero: never.
    pub wait_inline: Micros,
    /// A variant whose batch of one is expected to take no longer than this runs empty inputs when it was loaded, so
    /// that no query is its first. Zero: never.
    pub warm_up: Micros,
    /// How long a failed replica rests; doubles with each failure in a row.
    pub back_off: Micros,
    /// Failures in a row after which a variant is left alone.
    pub give_up_after: u32,
    /// A batch that takes this many times what was expected of it (and at least `hung_after`) is hung.
    pub hung_factor: u32,
    /// See `hung_factor`.
    pub hung_after: Micros,
    /// A batch that runs four times as long as it should (and at least this long) gives its lane up to others that wait for it,
    /// long before it is taken for hung. Zero: never.
    pub suspect_after: Micros,
    /// So many loads may take far longer than they were measured to while another begins beside them. Zero: what hangs in
    /// loading keeps all other loads waiting until it is ended.
    pub overdue_loads: u16,
    /// While others take cores, or batches on several lanes slow each other down, fewer run side by side.
    pub narrow: bool,
    /// Parts of like length that a batch is cut into at most, where its items differ in length and that pays. One: never.
    pub parts: u8,
    /// A replica is not evicted sooner than this after it was loaded.
    pub min_residence: Micros,
    /// How queries share batches where their task does not say.
    pub batching: Batching,
    /// Queries that cannot be in time here go back to their gateway while another node may still answer them.
    pub hand_back: bool,
    /// How long a drain may take before what is left is refused.
    pub drain: Micros,
    /// How long the store may take at the end to be told of it. Serving never waits for the store.
    pub store_within: Micros,
}

/// A server that variants of the engine `remote` are on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteServer {
    /// What an hour of computing one batch there costs. It counts instead of the price of the lane that waits for it;
    /// where nothing is said, that one does.
    pub price: Option<PricePerHour>,
    /// A file with the token that the server wants to see.
    pub token_file: Option<PathBuf>,
    /// A file with certificates of the authorities that its own may come from. Left out: those that the machine believes.
    pub ca: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "local".into(),
            pool: "default".into(),
            zone: "local".into(),
            zone_source: String::new(),
            device_class: "cpu:unknown:1".into(),
            lanes: 1,
            width: 1,
            memory: Bytes::from_mib(1_024),
            price: PricePerHour(50_000),
            price_origin: PriceOrigin::Assumed,
            remotes: BTreeMap::new(),
            gpu_prices: Vec::new(),
            hardware: Hardware::default(),
            queue: 1_024,
            queue_bytes: Bytes::from_mib(256),
            decode_inline: Bytes(16 << 10),
            prepare_inline: Micros(500),
            wait_inline: Micros(500),
            warm_up: Micros::from_millis(2),
            back_off: Micros::from_millis(100),
            give_up_after: 5,
            hung_factor: 20,
            hung_after: Micros::from_secs(1),
            suspect_after: Micros::from_millis(50),
            overdue_loads: 2,
            narrow: true,
            parts: u8::try_from(MOST_PARTS).unwrap_or(u8::MAX),
            batching: Batching::Deadline,
            hand_back: true,
            min_residence: Micros::from_millis(500),
            drain: Micros::from_secs(10),
            store_within: Micros::from_secs(5),
        }
    }
}

/// Less is not worth starting with.
pub const LEAST_MEMORY: Bytes = Bytes::from_mib(64);
/// More than any machine has; what is larger was mistyped.
pub const MOST_CORES: u16 = 4_096;
/// Names of nodes, pools and zones are labels of metrics too.
pub const LONGEST_NAME: usize = 63;

/// Whether something may name a node, a pool or a zone: names are shown, stored, and labels of metrics.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    !text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(plain)
}

impl Config {
    /// Refuses a node that could never serve.
    pub fn check(&self) -> Result<(), String> {
        for (name, text) in [("name", &self.name), ("pool", &self.pool), ("zone", &self.zone)] {
            if !is_name(text) {
                return Err(format!(
                    "`executor.{name}` {text:?} is no name; expected 1 to {LONGEST_NAME} letters, digits or any of - _ . :"
                ));
            }
        }
        for (name, value, most) in [
            ("lanes", self.lanes, MAX_LANES),
            ("width", self.width, MOST_CORES),
            ("parts", self.parts.into(), MOST_PARTS),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!(
                    "`executor.{name}` is {value}; it must be at least 1 and at most {most}"
                ));
            }
        }
        if self.queue == 0 || self.queue_bytes == Bytes(0) {
            return Err("`executor.queue` and `executor.queue_bytes` must be more than 0: even a query that is served at \
                        once stands in the queue first"
                .to_owned());
        }
        if self.memory < LEAST_MEMORY {
            return Err(format!(
                "`executor.memory` is {} bytes; the least that is worth starting with is {} bytes (64 MiB)",
                self.memory.0, LEAST_MEMORY.0
            ));
        }
        if self.hung_after == Micros(0) || self.hung_factor == 0 {
            return Err("`executor.hung_after` and `executor.hung_factor` must be more than 0: every batch would be taken \
                        for hung"
                .to_owned());
        }
        Ok(())
    }

    /// What an hour of a GPU costs.
    pub(crate) fn gpu_price(&self, number: u16) -> PricePerHour {
        let by_name = || self.hardware.gpus.get(usize::from(number)).map(|gpu| node::gpu_price(&gpu.name));
        let given = self.gpu_prices.get(usize::from(number)).copied();
        given.or_else(by_name).unwrap_or(node::ASSUMED_GPU)
    }

    /// What the machine is told of these settings: what a replay of its recording needs.
    pub fn worker(&self) -> WorkerConfig {
        WorkerConfig {
            devices: vec![DeviceConfig {
                lanes: self.lanes,
                width: self.width,
                memory: self.memory,
                price: self.price,
            }],
            queue: self.queue,
            queue_bytes: self.queue_bytes,
            back_off: self.back_off,
            give_up_after: self.give_up_after,
            batching: self.batching,
            hand_back: self.hand_back,
            min_residence: self.min_residence,
            foresight: Foresight::default(),
            suspect_after: self.suspect_after,
            servers_apart: true,
            overdue_loads: self.overdue_loads,
            narrow: self.narrow,
        }
    }

    /// Servers that may be reached, by their `HOST:PORT`, and the files about them.
    pub fn servers(&self) -> BTreeMap<String, ServerFiles> {
        let files = |(server, known): (&String, &RemoteServer)| {
            (server.clone(), ServerFiles { token: known.token_file.clone(), ca: known.ca.clone() })
        };
        self.remotes.iter().map(files).collect()
    }

    /// How many lanes a variant is loaded for: as many as the device could be cut into that are wide enough for it, so
    /// that a new cut needs no load.
    pub(crate) fn lanes_for(&self, threads: u16) -> u16 {
        let (lanes, width) = (self.lanes.max(1), self.width.max(1));
        let cores = lanes.saturating_mul(width);
        // Lanes are never cut narrower than they were set.
        (cores / threads.clamp(width, cores)).clamp(1, lanes)
    }

    /// How long what runs alone in quarantine may take before it stands back behind everything else. It holds no lane, but a core.
    pub(crate) fn stands_back_after(&self, expected: Micros) -> Duration {
        let never = self.suspect_after == Micros::ZERO;
        let scaled = Micros(expected.0.saturating_mul(4)).max(self.suspect_after);
        if never { Duration::MAX } else { Duration::from_micros(scaled.0) }
    }

    /// How long a batch may run before its runner is taken for hung. A server is given longer: its runner gives up by itself
    /// after 4 s, and names the server.
    pub(crate) fn hung_limit(&self, expected: Micros, engine: Engine) -> Duration {
        let least = if engine == Engine::Remote { self.hung_after.max(REMOTE) } else { self.hung_after };
        let scaled = Micros(expected.0.saturating_mul(u64::from(self.hung_factor)));
        Duration::from_micros(scaled.max(least).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Config);

    #[test]
    fn a_node_that_could_never_serve_is_refused_by_the_setting_that_makes_it_so() {
        assert_eq!(Config::default().check(), Ok(()));
        let wrong: [(&str, Change); 9] = [
            ("executor.lanes", |config| config.lanes = 0),
            ("executor.lanes", |config| config.lanes = u16::MAX),
            ("executor.width", |config| config.width = 0),
            ("executor.queue", |config| config.queue = 0),
            ("executor.queue_bytes", |config| config.queue_bytes = Bytes(0)),
            ("executor.memory", |config| config.memory = Bytes(1)),
            ("executor.name", |config| config.name = "a b".to_owned()),
            ("executor.zone", |config| config.zone = String::new()),
            ("executor.hung_after", |config| config.hung_after = Micros(0)),
        ];
        for (told, change) in wrong {
            let mut config = Config::default();
            change(&mut config);
            let why = config.check().unwrap_err();
            assert!(why.contains(&format!("`{told}`")), "{why}");
        }
    }
}
