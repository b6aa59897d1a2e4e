//! Asking a server that may be away for a while: a job takes long, and servers are started anew meanwhile.

use crate::client::{Api, Away, Reply};
use crate::progress::{Phase, short};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Method, StatusCode};
use serde_json::Value;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Between two tries: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// A server that says when to come again is believed so far.
const RETRY_MOST: Duration = Duration::from_mins(1);
/// One request takes no longer; the largest has a few megabytes.
const WITHIN: Duration = Duration::from_mins(5);

/// Asks again until there is an answer, or patience ends.
pub(super) struct Patient {
    api: Api,
    patience: Duration,
    pause: Duration,
    /// It answered once. Before that it is more likely a wrong address than a server that is away.
    reached: Cell<bool>,
}

impl Patient {
    pub(super) fn new(api: Api, patience: Duration) -> Self {
        Self { api: api.within(WITHIN), patience, pause: PAUSE.0, reached: Cell::new(false) }
    }

    #[cfg(test)]
    pub(super) fn in_a_hurry(self) -> Self {
        self.reached.set(true);
        Self { pause: Duration::from_millis(5), ..self }
    }

    pub(super) fn server(&self) -> &str {
        self.api.base()
    }

    pub(super) fn pause(&self, time: Duration) {
        self.api.pause(time);
    }

    pub(super) fn get(&self, path: &str, phase: &Phase) -> anyhow::Result<Reply> {
        self.ask((Method::GET, path, None), &Bytes::new(), phase)
    }

    pub(super) fn post(&self, path: &str, phase: &Phase) -> anyhow::Result<Reply> {
        self.ask((Method::POST, path, None), &Bytes::new(), phase)
    }

    pub(super) fn post_json(&self, path: &str, body: &Value, phase: &Phase) -> anyhow::Result<Reply> {
        self.post_body(path, &body.to_string().into(), phase)
    }

    pub(super) fn post_body(&self, path: &str, body: &Bytes, phase: &Phase) -> anyhow::Result<Reply> {
        self.ask((Method::POST, path, Some("application/json")), body, phase)
    }

    fn ask(
        &self,
        (method, path, media): (Method, &str, Option<&str>),
        body: &Bytes,
        phase: &Phase,
    ) -> anyhow::Result<Reply> {
        let mut pause = self.pause;
        let mut since = None;
        loop {
            let reply = self.api.send(method.clone(), path, media, body.clone());
            let Some((why, after)) = self.passing(&reply) else {
                if since.is_some() && reply.is_ok() {
                    phase.say("the server answers again");
                }
                return reply;
            };
            if since.is_none() {
                phase.say(&format!("{why}; trying again for up to {}", short(self.patience)));
            }
            let left = self.patience.saturating_sub(since.get_or_insert_with(Instant::now).elapsed());
            if left.is_zero() {
                phase.say(&format!(
                    "that lasted for {}; --patience says for how long to try",
                    short(self.patience)
                ));
                return reply;
            }
            self.api.pause(after.unwrap_or(pause).min(left));
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Why another try may help, and when, if the server said so; nothing where it does not.
    fn passing(&self, reply: &anyhow::Result<Reply>) -> Option<(String, Option<Duration>)> {
        match reply {
            Ok(reply) => {
                self.reached.set(true);
                is_passing(reply.status).then(|| (says(reply), retry_after(reply)))
            }
            Err(error) => (error.is::<Away>() && self.reached.get()).then(|| (error.to_string(), None)),
        }
    }
}

fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn says(reply: &Reply) -> String {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    match body["error"].as_str() {
        Some(error) => format!("the server says: {error}"),
        None => format!("the server answers {}", reply.status),
    }
}

fn retry_after(reply: &Reply) -> Option<Duration> {
    let seconds = reply.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_MOST))
}

#[cfg(test)]
mod tests {
    use super::super::server::{Played, Server};
    use super::*;
    use crate::client::TlsOptions;
    use crate::exit::Refused;

    fn patient(url: &str, patience: Duration) -> Patient {
        Patient::new(Api::new(url, None, &TlsOptions::default()).unwrap(), patience)
    }

    #[test]
    fn a_server_that_is_away_for_a_while_is_waited_for() {
        let server = Server::start();
        server.play([Played::Busy, Played::BreakOff, Played::Busy]);
        let patient = patient(&server.url, Duration::from_secs(30)).in_a_hurry();
        let reply = patient.get("/v1/jobs", &Phase::start("asking")).unwrap();
        assert_eq!((reply.status, server.asked()), (StatusCode::OK, 4));
    }

    #[test]
    fn patience_ends_and_what_is_wrong_is_told() {
        let server = Server::start();
        server.play(std::iter::repeat_n(Played::Busy, 10_000));
        let hurried = patient(&server.url, Duration::from_millis(100)).in_a_hurry();
        let reply = hurried.get("/v1/jobs", &Phase::start("asking")).unwrap();
        assert!(reply.ok().unwrap_err().is::<Refused>());
        assert!(server.asked() >= 3, "{}", server.asked());
        let nowhere = server.gone();
        let error = hurried_at(&nowhere).get("/v1/jobs", &Phase::start("asking")).unwrap_err();
        assert!(error.is::<Away>(), "{error}");
    }

    fn hurried_at(url: &str) -> Patient {
        patient(url, Duration::from_millis(50)).in_a_hurry()
    }

    #[test]
    fn an_address_at_which_nobody_ever_answered_is_not_waited_for() {
        let nowhere = Server::start().gone();
        let since = Instant::now();
        let error =
            patient(&nowhere, Duration::from_mins(5)).get("/v1/jobs", &Phase::start("asking")).unwrap_err();
        assert!(error.is::<Away>() && since.elapsed() < Duration::from_secs(20), "{error}");
    }
}
