//! Sending the inputs that a server does not have yet, some at a time.

use super::inputs::Inputs;
use super::patient::Patient;
use crate::client::{Reply, list};
use crate::progress::Phase;
use anyhow::Context;
use http::StatusCode;
use modelless_store::JOB_INPUTS_AT_ONCE;
use serde_json::Value;
use std::ops::Range;

/// What is sent at once, unless one input alone is larger.
const BYTES: usize = 4 << 20;
/// What a server finds too much is halved, but not below this.
const BYTES_LEAST: usize = 64 << 10;

/// Sends what is missing of a job; what the server told of the job then.
pub(super) fn send(
    (patient, phase): (&Patient, &mut Phase),
    number: u64,
    inputs: &mut Inputs,
) -> anyhow::Result<Value> {
    let all = inputs.len();
    let mut sending = Sending {
        patient,
        phase,
        path: format!("/v1/jobs/{number}/inputs"),
        most: BYTES,
        all,
        chunk: Vec::new(),
        bytes: 0,
    };
    let mut before = None;
    loop {
        let path = format!("/v1/jobs/{number}/missing?limit={JOB_INPUTS_AT_ONCE}");
        let answer = patient.get(&path, sending.phase)?.ok()?.json()?;
        let received = answer["job"]["received"].as_u64().unwrap_or(0);
        let places = list(&answer, "missing").iter().map(|at| u32::try_from(at.as_u64()?).ok());
        let missing: Option<Vec<u32>> = places.collect();
        let missing =
            missing.context("the server says in another way than expected which inputs are missing")?;
        let Some(first) = missing.first().copied() else { return Ok(answer["job"].clone()) };
        anyhow::ensure!(
            before.is_none_or(|before| received > before),
            "the server took inputs and still misses them; this is a fault of the server"
        );
        before = Some(received);
        sending.far(received);
        // All before the first one have come, and nothing else: then all behind it are missing, and need not be asked for.
        if received == u64::from(first) {
            sending.places(first..all, inputs)?;
        } else {
            sending.some(&missing, inputs)?;
        }
    }
}

struct Sending<'a> {
    patient: &'a Patient,
    phase: &'a mut Phase,
    path: String,
    most: usize,
    all: u32,
    /// Names, and what is sent of each.
    chunk: Vec<(String, String)>,
    bytes: usize,
}

impl Sending<'_> {
    fn places(&mut self, places: Range<u32>, inputs: &mut Inputs) -> anyhow::Result<()> {
        for at in places {
            self.add(inputs.read(at)?)?;
        }
        self.flush()
    }

    fn some(&mut self, places: &[u32], inputs: &mut Inputs) -> anyhow::Result<()> {
        for at in places {
            self.add(inputs.read(*at)?)?;
        }
        self.flush()
    }

    fn add(&mut self, one: (String, String)) -> anyhow::Result<()> {
        let bytes = one.1.len() + 1;
        if self.bytes + bytes > self.most {
            self.flush()?;
        }
        self.bytes += bytes;
        self.chunk.push(one);
        if self.chunk.len() >= JOB_INPUTS_AT_ONCE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.bytes = 0;
        let chunk = std::mem::take(&mut self.chunk);
        if chunk.is_empty() { Ok(()) } else { self.send(&chunk) }
    }

    fn send(&mut self, chunk: &[(String, String)]) -> anyhow::Result<()> {
        let bytes = chunk.iter().map(|(_, one)| one.len() + 1).sum::<usize>();
        let mut body = Vec::with_capacity(bytes + 16);
        body.extend_from_slice(b"{\"inputs\":[");
        for (number, (_, one)) in chunk.iter().enumerate() {
            if number > 0 {
                body.push(b',');
            }
            body.extend_from_slice(one.as_bytes());
        }
        body.extend_from_slice(b"]}");
        let reply = self.patient.post_body(&self.path, &body.into(), self.phase)?;
        if is_about_inputs(reply.status) {
            if let [(name, _)] = chunk {
                return Err(refused(reply, name));
            }
            // One of them is what it does not take, or all of them together.
            if reply.status == StatusCode::PAYLOAD_TOO_LARGE {
                self.most = (self.most / 2).max(BYTES_LEAST);
            }
            let (one, other) = chunk.split_at(chunk.len() / 2);
            self.send(one)?;
            return self.send(other);
        }
        let job = reply.ok()?.json()?;
        self.far(job["received"].as_u64().unwrap_or(0));
        Ok(())
    }

    fn far(&mut self, received: u64) {
        let all = u64::from(self.all);
        let step = format!("{}", received.saturating_mul(10) / all.max(1));
        self.phase.far((received, all), &step, &format!("{received} of {all} sent"));
    }
}

fn is_about_inputs(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY
    )
}

fn refused(reply: Reply, name: &str) -> anyhow::Error {
    let why = format!("the server does not take {name:?}; leave it out, and submit the others with --again");
    match reply.ok() {
        Err(error) => error.context(why),
        Ok(_) => anyhow::anyhow!(why),
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::{Played, Server};
    use super::*;
    use crate::client::{Api, TlsOptions};
    use modelless_testkit::temp_dir;
    use serde_json::json;
    use std::time::Duration;

    fn patient(server: &Server) -> Patient {
        let api = Api::new(&server.url, None, &TlsOptions::default()).unwrap();
        Patient::new(api, Duration::from_secs(20)).in_a_hurry()
    }

    #[test]
    fn only_what_is_missing_is_sent_in_parts_that_the_server_takes() {
        let folder = temp_dir("send").unwrap();
        let path = folder.path().join("in.jsonl");
        let long = "x".repeat(3_000);
        let lines: Vec<String> =
            (0..2_500).map(|at| json!({"inputs": format!("{at} {long}")}).to_string()).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        let mut inputs = Inputs::find(&path, Some(folder.path())).unwrap();
        let server = Server::start();
        let job = server.job(2_500);
        let patient = patient(&server);
        // At first it is busy, and then one answer is lost.
        server.play([Played::Pass, Played::Busy, Played::BreakOff]);
        send((&patient, &mut Phase::start("sending")), job, &mut inputs).unwrap();
        let again = server.again(job);
        assert_eq!(server.received(job), 2_500);
        assert!(again > 0 && again <= JOB_INPUTS_AT_ONCE, "what the lost answer was about: {again}");
        assert!(server.largest() <= BYTES + 16, "{}", server.largest());
        assert!(server.most_at_once() <= JOB_INPUTS_AT_ONCE);
        // Some are lost in between: these are sent, and no others.
        for at in [3, 700, 2_499] {
            server.lose(job, at);
        }
        send((&patient, &mut Phase::start("sending")), job, &mut inputs).unwrap();
        assert_eq!((server.received(job), server.again(job)), (2_500, again));
        // A server that takes less gets less.
        let job = server.job(2_500);
        server.take_at_most(200_000);
        send((&patient, &mut Phase::start("sending")), job, &mut inputs).unwrap();
        assert_eq!(server.received(job), 2_500);
        let job = server.job(2_500);
        server.take_at_most(1_000);
        let error = send((&patient, &mut Phase::start("sending")), job, &mut inputs).unwrap_err();
        assert!(format!("{error:#}").contains("\"line-1\""), "{error:#}");
    }

    #[test]
    fn of_many_inputs_the_one_that_is_not_taken_is_named() {
        let folder = temp_dir("send").unwrap();
        let path = folder.path().join("in.jsonl");
        let lines: Vec<String> =
            (0..900).map(|at| json!({"inputs": at, "name": format!("n{at}")}).to_string()).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        let mut inputs = Inputs::find(&path, Some(folder.path())).unwrap();
        let server = Server::start();
        server.refuse("n437");
        let job = server.job(900);
        let error = send((&patient(&server), &mut Phase::start("sending")), job, &mut inputs).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("\"n437\"") && error.contains("no picture"), "{error}");
        assert!(server.asked() < 30, "{}", server.asked());
    }
}
