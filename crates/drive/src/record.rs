//! Keeping what a machine was told, and replaying it.
//!
//! One line of JSON per input, with the actions it gave. A bounded channel lies between the machine and the file: if
//! the disk cannot keep up, the recording ends with a line that says so, and serving goes on.

use modelless_decision::Machine;
use modelless_types::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Lines that may wait for the disk.
const BACKLOG: usize = 65_536;

/// After so long without another line what is there is written out: not after each, which would be a write a query.
const QUIET: Duration = Duration::from_millis(50);

#[derive(Serialize, Deserialize)]
struct Line {
    now: Time,
    /// Absent for a timer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<Value>,
    actions: Vec<Value>,
}

/// Writes a machine's inputs and actions somewhere. Dropping it writes what still waits.
#[derive(Debug)]
pub struct Recorder {
    lines: Option<SyncSender<String>>,
    /// Written after all lines, if it ended early.
    last_words: Arc<Mutex<Option<String>>>,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// To a file, or anything else that takes bytes.
    pub fn to(out: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel(BACKLOG);
        let last_words = Arc::<Mutex<Option<String>>>::default();
        let last = Arc::clone(&last_words);
        let writer = std::thread::Builder::new().name("recorder".into());
        let writer = writer.spawn(move || write_all(out, &waiting, &last))?;
        Ok(Self { lines: Some(lines), last_words, writer: Some(writer) })
    }

    pub(crate) fn input<A: Serialize>(&mut self, now: Time, event: serde_json::Result<Value>, actions: &[A]) {
        match event {
            Ok(event) => self.line(now, Some(event), actions),
            Err(err) => self.end(&format!("an input could not be written down: {err}")),
        }
    }

    pub(crate) fn timer<A: Serialize>(&mut self, now: Time, actions: &[A]) {
        self.line(now, None, actions);
    }

    fn line<A: Serialize>(&mut self, now: Time, event: Option<Value>, actions: &[A]) {
        let actions: Result<Vec<Value>, _> = actions.iter().map(serde_json::to_value).collect();
        let text = actions.and_then(|actions| serde_json::to_string(&Line { now, event, actions }));
        let text = match text {
            Ok(text) => text,
            Err(err) => return self.end(&format!("an action could not be written down: {err}")),
        };
        match self.lines.as_ref().map(|lines| lines.try_send(text)) {
            Some(Err(TrySendError::Full(_))) => self.end("the disk is too slow"),
            Some(Err(TrySendError::Disconnected(_))) => self.end("the file cannot be written"),
            Some(Ok(())) | None => {}
        }
    }

    /// What was recorded until now still replays; its last line says that more happened.
    fn end(&mut self, why: &str) {
        tracing::warn!(why, "recording ended early");
        let line = serde_json::json!({ "ended_early": why }).to_string();
        *self.last_words.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(line);
        self.lines = None;
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write_all(out: impl Write, lines: &Receiver<String>, last_words: &Mutex<Option<String>>) {
    let mut out = std::io::BufWriter::new(out);
    while let Ok(line) = lines.recv_timeout(QUIET).or_else(|_| {
        // Nothing more for now: whoever reads along is to have all of it.
        let _ = out.flush();
        lines.recv()
    }) {
        if writeln!(out, "{line}").is_err() {
            return;
        }
    }
    if let Some(words) = last_words.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
        let _ = writeln!(out, "{words}");
    }
    let _ = out.flush();
}

/// What a replay found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replay {
    /// Inputs fed.
    pub inputs: u64,
    /// Actions compared; all were the same.
    pub actions: u64,
}

/// Feeds a recording to a fresh machine and compares every action. The error names the first line that differs.
pub fn replay<M>(machine: &mut M, recording: impl BufRead) -> Result<Replay, String>
where
    M: Machine,
    M::Event: DeserializeOwned,
    M::Action: Serialize,
{
    let mut done = Replay { inputs: 0, actions: 0 };
    for (number, line) in recording.lines().enumerate() {
        let number = number + 1;
        let line = line.map_err(|err| format!("line {number} cannot be read: {err}"))?;
        let line: Line =
            serde_json::from_str(&line).map_err(|err| format!("line {number} is no record: {err}"))?;
        match line.event {
            Some(event) => {
                let event = serde_json::from_value(event);
                let event =
                    event.map_err(|err| format!("line {number} holds no event of this machine: {err}"))?;
                machine.handle(line.now, event);
            }
            None => machine.handle_timeout(line.now),
        }
        done.inputs += 1;
        let mut actions = Vec::new();
        while let Some(action) = machine.poll_action() {
            actions.push(serde_json::to_value(action).map_err(|err| format!("line {number}: {err}"))?);
        }
        if actions != line.actions {
            return Err(format!(
                "line {number} gave other actions: recorded {}, now {}",
                Value::from(line.actions),
                Value::from(actions)
            ));
        }
        done.actions += actions.len() as u64;
    }
    Ok(done)
}
