//! A small server for the tests of this folder: it speaks of jobs as a real one does, answers an input with its name, and can be away.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What becomes of the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Played {
    /// Nothing special.
    Pass,
    /// 503, and nothing is done.
    Busy,
    /// It is done, and the answer is lost.
    BreakOff,
}

pub(super) struct Server {
    pub(super) url: String,
    kept: Arc<Mutex<Kept>>,
    serving: Option<JoinHandle<()>>,
}

struct Job {
    about: Value,
    inputs: Vec<Option<Value>>,
    state: &'static str,
    /// How many have ended, in order.
    ended: usize,
    again: usize,
    fails: String,
}

#[derive(Default)]
struct Kept {
    jobs: Vec<Option<Job>>,
    plays: VecDeque<Played>,
    asked: Vec<String>,
    largest: usize,
    most_at_once: usize,
    at_most: Option<usize>,
    /// So many end at each look.
    pace: usize,
    fails: Option<String>,
    refused: Option<String>,
    over: bool,
}

impl Server {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let kept = Arc::new(Mutex::new(Kept { pace: usize::MAX, ..Kept::default() }));
        let serving = std::thread::spawn({
            let kept = Arc::clone(&kept);
            move || {
                for stream in listener.incoming() {
                    if kept.lock().unwrap().over {
                        return;
                    }
                    // A client that goes away is no fault of the server.
                    let _ = serve(stream.unwrap(), &kept);
                }
            }
        });
        Self { url, kept, serving: Some(serving) }
    }

    /// Ends it; nobody is at its address any more.
    pub(super) fn gone(self) -> String {
        self.url.clone()
    }

    pub(super) fn play(&self, plays: impl IntoIterator<Item = Played>) {
        self.kept.lock().unwrap().plays = plays.into_iter().collect();
    }

    pub(super) fn asked(&self) -> usize {
        self.kept.lock().unwrap().asked.len()
    }

    /// How many requests began so.
    pub(super) fn asked_for(&self, what: &str) -> usize {
        self.kept.lock().unwrap().asked.iter().filter(|asked| asked.starts_with(what)).count()
    }

    pub(super) fn job(&self, inputs: usize) -> u64 {
        self.kept.lock().unwrap().make(&json!({"task": "t", "inputs": inputs}))
    }

    pub(super) fn received(&self, job: u64) -> usize {
        self.with(job, |job| job.inputs.iter().flatten().count())
    }

    /// Inputs that came though they were there.
    pub(super) fn again(&self, job: u64) -> usize {
        self.with(job, |job| job.again)
    }

    pub(super) fn lose(&self, job: u64, at: usize) {
        self.with(job, |job| job.inputs[at] = None);
    }

    pub(super) fn input(&self, job: u64, at: usize) -> Value {
        self.with(job, |job| job.inputs[at].clone().unwrap_or_default())
    }

    /// It has not been started.
    pub(super) fn receiving(&self, job: u64) {
        self.with(job, |job| job.state = "receiving");
    }

    /// Whatever is called so fails from now on, in this job and those after it.
    pub(super) fn fail(&self, name: &str) {
        self.kept.lock().unwrap().fails = Some(name.to_owned());
    }

    /// An input of this name is not taken.
    pub(super) fn refuse(&self, name: &str) {
        self.kept.lock().unwrap().refused = Some(name.to_owned());
    }

    pub(super) fn jobs(&self) -> usize {
        self.kept.lock().unwrap().jobs.len()
    }

    pub(super) fn forget(&self, job: u64) {
        self.kept.lock().unwrap().jobs[usize::try_from(job).unwrap()] = None;
    }

    fn with<T>(&self, job: u64, seen: impl FnOnce(&mut Job) -> T) -> T {
        seen(self.kept.lock().unwrap().jobs[usize::try_from(job).unwrap()].as_mut().unwrap())
    }

    pub(super) fn largest(&self) -> usize {
        self.kept.lock().unwrap().largest
    }

    pub(super) fn most_at_once(&self) -> usize {
        self.kept.lock().unwrap().most_at_once
    }

    pub(super) fn take_at_most(&self, bytes: usize) {
        self.kept.lock().unwrap().at_most = Some(bytes);
    }

    pub(super) fn end_at_each_look(&self, inputs: usize) {
        self.kept.lock().unwrap().pace = inputs;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kept.lock().unwrap().over = true;
        // Wakes it.
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
        if let Some(serving) = self.serving.take() {
            serving.join().unwrap();
        }
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Kept>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut kept = kept.lock().unwrap();
    kept.asked.push(format!("{method} {path}"));
    let play = kept.plays.pop_front().unwrap_or(Played::Pass);
    let (status, answer) = match play {
        Played::Busy => (503, json!({"error": "come again", "reason": "store_away"})),
        Played::Pass | Played::BreakOff => kept.answer(method, path, &body),
    };
    drop(kept);
    if play == Played::BreakOff {
        return Ok(());
    }
    let answer = if status == 204 { String::new() } else { answer.to_string() };
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len()
    )
}

impl Kept {
    fn make(&mut self, asked: &Value) -> u64 {
        let inputs = usize::try_from(asked["inputs"].as_u64().unwrap()).unwrap();
        self.jobs.push(Some(Job {
            about: asked.clone(),
            inputs: vec![None; inputs],
            state: "receiving",
            ended: 0,
            again: 0,
            fails: self.fails.clone().unwrap_or_else(|| "bad".to_owned()),
        }));
        u64::try_from(self.jobs.len() - 1).unwrap()
    }

    fn answer(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.split('/').skip(3).collect();
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        if parts.is_empty() {
            return match method {
                "GET" => (200, json!({"jobs": []})),
                _ if query == "dry_run=true" => {
                    (200, json!({"estimate": {"usd": 0.5, "device_s": 2.0, "variant": "v"}}))
                }
                _ => {
                    let number = self.make(&asked);
                    (201, self.shown(number))
                }
            };
        }
        let number: u64 = parts[0].parse().unwrap();
        let index = usize::try_from(number).unwrap();
        if self.jobs.get(index).is_none_or(Option::is_none) {
            return (404, json!({"error": "there is no such job", "reason": "unknown_job"}));
        }
        let (pace, at_most, refused) = (self.pace, self.at_most, self.refused.clone());
        let job = self.jobs[index].as_mut().unwrap();
        let missing: Vec<usize> = (0..job.inputs.len()).filter(|at| job.inputs[*at].is_none()).collect();
        match (method, parts.get(1).copied().unwrap_or_default()) {
            ("GET", "missing") => {
                let missing: Vec<usize> = missing.into_iter().take(1_000).collect();
                return (200, json!({"missing": missing, "job": self.shown(number)}));
            }
            ("POST", "inputs") if at_most.is_some_and(|most| body.len() > most) => {
                return (413, json!({"error": "too much", "reason": "too_large"}));
            }
            ("POST", "inputs")
                if asked["inputs"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|one| refused.as_deref() == one["name"].as_str()) =>
            {
                return (415, json!({"error": "this is no picture", "reason": "unsupported_media"}));
            }
            ("POST", "inputs") => {
                let inputs = asked["inputs"].as_array().unwrap();
                for input in inputs {
                    let at = usize::try_from(input["at"].as_u64().unwrap()).unwrap();
                    job.again += usize::from(job.inputs[at].is_some());
                    job.inputs[at] = Some(input.clone());
                }
                self.most_at_once = self.most_at_once.max(inputs.len());
                self.largest = self.largest.max(body.len());
            }
            ("POST", "start") if !missing.is_empty() => {
                return (409, json!({"error": "some are missing", "reason": "inputs_missing"}));
            }
            ("POST", "start") => job.state = "running",
            ("POST", "cancel") => job.state = "cancelled",
            ("GET", "outputs") => {
                let from: usize =
                    query.split('&').next().unwrap().trim_start_matches("from=").parse().unwrap();
                // Two a page, so that there are several.
                let to = job.ended.min(from + 2);
                let outputs: Vec<Value> = (from..to).map(|at| job.output(at)).collect();
                let next = (to < job.ended).then_some(to);
                return (200, json!({"outputs": outputs, "next": next, "job": self.shown(number)}));
            }
            ("DELETE", _) => {
                self.jobs[index] = None;
                return (204, Value::Null);
            }
            _ if job.state == "running" => {
                job.ended = job.ended.saturating_add(pace).min(job.inputs.len());
                if job.ended == job.inputs.len() {
                    job.state = "done";
                }
            }
            _ => {}
        }
        (200, self.shown(number))
    }

    fn shown(&self, number: u64) -> Value {
        let job = self.jobs[usize::try_from(number).unwrap()].as_ref().unwrap();
        let failed = (0..job.ended).filter(|at| job.is_bad(*at)).count();
        json!({"job": number, "name": job.about["name"], "task": job.about["task"], "goals": job.about["goals"], "state": job.state,
            "inputs": job.inputs.len(), "received": job.inputs.iter().flatten().count(), "done": job.ended - failed,
            "failed": failed, "cost_usd": 0.25, "estimate_usd": 0.5, "made_unix_us": number + 1_000})
    }
}

impl Job {
    fn is_bad(&self, at: usize) -> bool {
        self.inputs[at].as_ref().is_some_and(|input| input["name"].as_str().unwrap().contains(&self.fails))
    }

    fn output(&self, at: usize) -> Value {
        let name = self.inputs[at].as_ref().unwrap()["name"].clone();
        if self.is_bad(at) {
            return json!({"at": at, "name": name, "reason": "bad_input", "message": format!("{name} is bad")});
        }
        json!({"at": at, "name": name, "answer": {"of": name, "at": at}, "variant": "v"})
    }
}
