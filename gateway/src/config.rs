//! What can be set, with the values that hold otherwise.

use crate::tls::TlsFiles;
use crate::traces::TracesConfig;
use modelless_decision::route::{ANNOUNCE, Limits};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Settings of a gateway.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where HTTP is served. Port 0 takes a free one.
    pub http: SocketAddr,
    /// Where gRPC is served, if anywhere.
    pub grpc: Option<SocketAddr>,
    /// Certificates, where clients are spoken to by TLS.
    pub tls: TlsFiles,
    /// Where traces of queries go.
    pub traces: TracesConfig,
    /// Largest body of a query or an administrative request.
    pub max_body_bytes: u64,
    /// Largest artefact that can be uploaded.
    pub max_artefact_bytes: u64,
    /// Bodies of queries held at one time, all together.
    pub max_held_bytes: u64,
    /// Answers that are kept to be given again, all together; 0 for none.
    pub max_cache_bytes: u64,
    /// Inputs that wait and outputs of offline jobs, of one tenant.
    pub max_job_bytes: u64,
    /// Largest head of a request: first line and headers.
    pub max_header_bytes: usize,
    /// Most headers of a request.
    pub max_headers: usize,
    /// Connections open at one time; more are told 503 and closed.
    pub max_connections: usize,
    /// And so many from one address; for IPv6 its first 64 bits count. What comes from this machine is not counted so.
    pub max_connections_per_address: usize,
    /// Whether clients on this machine may have tensors in shared memory instead of sending them.
    pub shared_memory: bool,
    /// From the first byte of a head to its last.
    pub header_timeout_ms: u64,
    /// How long a connection may stay open between requests.
    pub idle_timeout_ms: u64,
    /// From the first byte of a query's body to its last.
    pub body_timeout_ms: u64,
    /// How long queries are still answered when the gateway is asked to end, each with a wish that its connection be closed,
    /// so that clients of several gateways go elsewhere before anything is refused. Not ready meanwhile.
    pub leave_ms: u64,
    /// How long queries that run when the gateway drains have to finish.
    pub drain_timeout_ms: u64,
    /// How long a query with `fallback=best_effort` is still worth answering after its latency goal.
    pub best_effort_ms: u64,
    /// For how long after an answer feedback on it is taken.
    pub feedback_within_s: u64,
    /// Of each of the two that a trial compares one query in so long is compared: what troubles many at once counts once.
    pub trial_beat_ms: u64,
    /// Bounds on what waits.
    pub waiting: Limits,
    /// Breaks ties between equal nodes; different in every gateway unless set.
    pub seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            grpc: None,
            tls: TlsFiles::default(),
            traces: TracesConfig::default(),
            max_body_bytes: 32 << 20,
            max_artefact_bytes: 4 << 30,
            max_held_bytes: 1 << 30,
            max_cache_bytes: 64 << 20,
            max_job_bytes: 4 << 30,
            max_header_bytes: 16 << 10,
            max_headers: 100,
            max_connections: 10_000,
            max_connections_per_address: 1_000,
            shared_memory: false,
            header_timeout_ms: 10_000,
            idle_timeout_ms: 75_000,
            body_timeout_ms: 30_000,
            leave_ms: 0,
            drain_timeout_ms: 10_000,
            best_effort_ms: 30_000,
            feedback_within_s: 24 * 3_600,
            trial_beat_ms: 1_000,
            waiting: Limits { announce: ANNOUNCE, ..Limits::default() },
            seed: None,
        }
    }
}

impl Config {
    /// What is wrong with it, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let positive = [
            ("max_body_bytes", self.max_body_bytes),
            ("max_artefact_bytes", self.max_artefact_bytes),
            ("max_held_bytes", self.max_held_bytes),
            ("max_headers", self.max_headers as u64),
            ("max_connections", self.max_connections as u64),
            ("max_connections_per_address", self.max_connections_per_address as u64),
            ("header_timeout_ms", self.header_timeout_ms),
            ("idle_timeout_ms", self.idle_timeout_ms),
            ("body_timeout_ms", self.body_timeout_ms),
            ("trial_beat_ms", self.trial_beat_ms),
            ("waiting.waiting", u64::from(self.waiting.waiting)),
            ("waiting.classes", u64::from(self.waiting.classes)),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} is 0; it must be at least 1"));
        }
        if self.max_header_bytes < 1_024 {
            return Err(format!("max_header_bytes is {}; it must be at least 1024", self.max_header_bytes));
        }
        self.traces.check()
    }

    pub(crate) fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.header_timeout_ms)
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms)
    }

    pub(crate) fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms)
    }

    pub(crate) fn feedback_within(&self) -> Duration {
        Duration::from_secs(self.feedback_within_s)
    }

    pub(crate) fn leave(&self) -> Duration {
        Duration::from_millis(self.leave_ms)
    }

    pub(crate) fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.drain_timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound_and_a_zero_is_named() {
        assert_eq!(Config::default().check(), Ok(()));
        let none = Config { max_connections: 0, ..Config::default() };
        assert!(none.check().unwrap_err().contains("max_connections"));
    }

    #[test]
    fn an_unknown_setting_is_refused() {
        let error = serde_json::from_str::<Config>(r#"{"max_bodies": 1}"#).unwrap_err().to_string();
        assert!(error.contains("max_bodies"), "{error}");
    }
}
