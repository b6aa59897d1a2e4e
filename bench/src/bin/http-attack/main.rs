//! Attacks on a server over HTTP and gRPC, from one address: what others see of them is measured beside it.
//!
//! `http-attack ADDRESS KEY TARGET BODY_BYTES`, then questions `{"do": KIND, "ms", "connections"}`:
//!
//! * `flood`: every connection asks TARGET with the key, again at once; with another `key` where the question names one, as `flood-wide`;
//! * `grpc-flood`: the same over gRPC `at` another address, with a hundred calls at once on each connection, of the question's `model` with its `input`;
//! * `grpc-malformed` and `grpc-bombs`: the same with messages that cannot be read, and with such that are small and too large once they are unpacked;
//! * `explain`: every connection asks why, with the key, again at once;
//! * `malformed`: bodies that cannot be read, to the question's `model`, natively and by the Open Inference Protocol, with the key;
//! * `wrong-keys`: the same with keys of nobody;
//! * `oversized`: bodies that say that they are larger than any may be, and such that grow until somebody stops them;
//! * `slow`: heads and bodies that come byte by byte;
//! * `connections`: as many as are let in, without a word on any of them; at another address than ADDRESS where the question names one `at`.
//!
//! Each answers with what came back, by status (`grpc 0` and so on for gRPC's, of a refusal with its name); `closed` is a connection that ended without an answer. It runs at the lowest priority: attackers
//! have machines of their own, and here they take what nobody else wants.
#![allow(clippy::disallowed_methods, reason = "it lasts for a time that is given")]

mod grpc;
mod malformed;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use modelless_testkit::http::Answer;
use modelless_testkit::{Connection, Request, Rng, turns};
use serde_json::{Value, json};

/// Largest body that a gateway takes by itself, and one more.
const TOO_LARGE: usize = (32 << 20) + 1;
/// Between two bytes of what comes slowly.
const DRIP: Duration = Duration::from_millis(500);
/// After a "no" without an answer: the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// What came back, and how often.
type Seen = BTreeMap<String, u64>;

struct Attack {
    address: SocketAddr,
    key: String,
    target: String,
    body: Vec<u8>,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, key, target, bytes] = args.as_slice() else {
        bail!("usage: http-attack ADDRESS KEY TARGET BODY_BYTES")
    };
    rustix::process::setpriority_process(None, 19)?;
    let body = vec![0; bytes.parse()?];
    let attack = Attack { address: address.parse()?, key: key.clone(), target: target.clone(), body };
    turns::serve(|question| {
        let number = |name: &str| question[name].as_u64().with_context(|| format!("`{name}` in {question}"));
        let (end, count) = (Instant::now() + Duration::from_millis(number("ms")?), number("connections")?);
        let seen = match question["do"].as_str() {
            Some("flood" | "flood-wide") => {
                let request = attack.query(question["key"].as_str().unwrap_or(&attack.key));
                on_each(count, |_| attack.asks(|_| request.clone(), end))
            }
            Some("grpc-flood") => {
                let flood = attack.over_grpc(question)?;
                on_each(count, |_| flood.run(end))
            }
            Some("grpc-malformed") => {
                let flood = grpc::Flood::malformed(text(question, "at")?.parse()?, &attack.key);
                on_each(count, |_| flood.run(end))
            }
            Some("grpc-bombs") => {
                let flood = grpc::Flood::bombs(text(question, "at")?.parse()?, &attack.key)?;
                on_each(count, |_| flood.run(end))
            }
            Some("explain") => {
                let request = attack.explain();
                on_each(count, |_| attack.asks(|_| request.clone(), end))
            }
            Some("malformed") => {
                let model = text(question, "model")?;
                let all = malformed::requests(&attack.target, model, &attack.key, &attack.body);
                on_each(count, |_| attack.asks(|number| all[number % all.len()].clone(), end))
            }
            Some("wrong-keys") => on_each(count, |number| {
                let mut rng = Rng::new(number);
                let mut key = || format!("mlk_{:016x}{:048x}", rng.next_u64(), rng.next_u64());
                attack.asks(|_| attack.query(&key()), end)
            }),
            Some("oversized") => on_each(count, |number| attack.oversized(number, end)),
            Some("slow") => attack.slow(count, end),
            Some("connections") => Ok(match question["at"].as_str() {
                Some(elsewhere) => connections(elsewhere.parse()?, count, end),
                None => connections(attack.address, count, end),
            }),
            other => bail!("cannot do {other:?}"),
        };
        Ok(json!(seen?))
    })
}

fn text<'a>(question: &'a Value, name: &str) -> Result<&'a str> {
    question[name].as_str().with_context(|| format!("`{name}` in {question}"))
}

fn note(seen: &mut Seen, answer: &Result<Answer>) -> bool {
    let what = match answer {
        Ok(Answer::Response(response)) => response.status.to_string(),
        Ok(Answer::Closed) | Err(_) => "closed".to_owned(),
    };
    let stays = what != "closed";
    *seen.entry(what).or_default() += 1;
    stays
}

fn on_each(count: u64, one: impl Fn(u64) -> Result<Seen> + Sync) -> Result<Seen> {
    let mut all = Seen::new();
    std::thread::scope(|scope| {
        let one = &one;
        let clients: Vec<_> = (0..count).map(|number| scope.spawn(move || one(number))).collect();
        for client in clients {
            let seen = client.join().map_err(|_| anyhow::anyhow!("an attacker panicked"))??;
            for (what, times) in seen {
                *all.entry(what).or_default() += times;
            }
        }
        Ok(all)
    })
}

impl Attack {
    /// A new connection, as often as it takes.
    fn open(&self, seen: &mut Seen, end: Instant) -> Option<Connection> {
        while Instant::now() < end {
            if let Ok(open) = Connection::open(self.address) {
                return Some(open);
            }
            *seen.entry("not let in".to_owned()).or_default() += 1;
            std::thread::sleep(PAUSE);
        }
        None
    }

    fn query(&self, key: &str) -> Vec<u8> {
        let request = Request::post(&self.target).header("api-key", key);
        request.header("content-type", "application/octet-stream").body(self.body.clone()).to_bytes()
    }

    fn explain(&self) -> Vec<u8> {
        let (path, goals) = self.target.split_once('?').unwrap_or((&self.target, ""));
        Request::post(&format!("{path}/explain?{goals}")).header("api-key", &self.key).body([]).to_bytes()
    }

    fn over_grpc(&self, question: &Value) -> Result<grpc::Flood> {
        let (model, address) = (text(question, "model")?, text(question, "at")?.parse()?);
        let input = &question["input"];
        let axes = input["shape"].as_array().with_context(|| format!("a shape in {input}"))?;
        let axes = axes.iter().map(|axis| axis.as_u64().context("a shape of whole numbers"));
        let shape = std::iter::once(Ok(1)).chain(axes).collect::<Result<_>>()?; // one row
        let input = grpc::Input { name: text(input, "name")?, dtype: text(input, "dtype")?, shape };
        Ok(grpc::Flood::new(address, &self.key, model, &input, &self.body))
    }

    /// One request after another, each as soon as the one before is answered.
    fn asks(&self, mut next: impl FnMut(usize) -> Vec<u8>, end: Instant) -> Result<Seen> {
        let mut seen = Seen::new();
        let mut number = 0;
        while let Some(mut open) = self.open(&mut seen, end) {
            while Instant::now() < end {
                number += 1;
                open.send_raw(&next(number))?;
                let answer = open.answer();
                if !note(&mut seen, &answer) {
                    std::thread::sleep(PAUSE);
                    break;
                }
            }
        }
        Ok(seen)
    }

    fn oversized(&self, number: u64, end: Instant) -> Result<Seen> {
        let mut seen = Seen::new();
        let head = |length: &str| {
            format!(
                "POST {} HTTP/1.1\r\nhost: x\r\napi-key: {}\r\ncontent-type: application/octet-stream\r\n{length}\r\n\r\n",
                self.target, self.key
            )
        };
        let mut growing = number % 2 == 1;
        while let Some(mut open) = self.open(&mut seen, end) {
            growing = !growing;
            if growing {
                open.send_raw(head("transfer-encoding: chunked").as_bytes())?;
                let piece = [b"10000\r\n".as_slice(), &vec![0; 1 << 16], b"\r\n"].concat();
                for _ in 0..=TOO_LARGE / (1 << 16) {
                    if Instant::now() >= end || open.has_answer()? {
                        break;
                    }
                    open.send_raw(&piece)?;
                }
                open.finish();
            } else {
                open.send_raw(head(&format!("content-length: {TOO_LARGE}")).as_bytes())?;
            }
            note(&mut seen, &open.answer());
        }
        Ok(seen)
    }

    /// Half of them never end their heads, the others never their bodies.
    fn slow(&self, count: u64, end: Instant) -> Result<Seen> {
        let mut seen = Seen::new();
        let head = format!("POST {} HTTP/1.1\r\nhost: x\r\nx-more: ", self.target);
        let with_body = format!(
            "POST {} HTTP/1.1\r\nhost: x\r\napi-key: {}\r\ncontent-type: application/octet-stream\r\n\
             content-length: 1000000\r\n\r\n",
            self.target, self.key
        );
        let mut all = Vec::new();
        for number in 0..count {
            let Some(mut open) = self.open(&mut seen, end) else { break };
            let begin = if number % 2 == 0 { head.as_bytes() } else { with_body.as_bytes() };
            open.send_raw(begin)?;
            all.push(open);
        }
        while Instant::now() < end {
            for open in &mut all {
                open.send_raw(b"x")?;
            }
            std::thread::sleep(DRIP);
        }
        for open in &mut all {
            if open.has_answer().unwrap_or(true) {
                note(&mut seen, &open.answer());
            } else {
                *seen.entry("open to the end".to_owned()).or_default() += 1;
            }
        }
        Ok(seen)
    }
}

/// Spread over the whole time, so that it is no burst which is over before anybody is asked.
fn connections(address: SocketAddr, count: u64, end: Instant) -> Seen {
    let mut seen = Seen::new();
    let mut all = Vec::new();
    let began = Instant::now();
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let each = end.saturating_duration_since(began) / count.max(1);
    for number in 0..count {
        let due = began + each * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        match Connection::open(address) {
            Ok(open) => all.push(open),
            Err(_) => *seen.entry("not let in".to_owned()).or_default() += 1,
        }
    }
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    for open in &mut all {
        if open.has_answer().unwrap_or(true) {
            note(&mut seen, &open.answer());
        } else {
            *seen.entry("open to the end".to_owned()).or_default() += 1;
        }
    }
    seen
}
