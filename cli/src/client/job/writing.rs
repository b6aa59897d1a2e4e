//! Writing what inputs ended with: each output once, as a file of its own or as a line, and what failed beside it.

use super::folder::Folder;
use super::patient::Patient;
use super::{figure, names};
use crate::client::text;
use crate::progress::Phase;
use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

pub(super) const OUTPUTS: &str = "outputs.jsonl";
pub(super) const FAILURES: &str = "failures.jsonl";
/// Outputs that are asked for at once.
const PAGE: u32 = 500;

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Files or lines of answers.
    pub(super) answers: u64,
    /// Of these so many were there.
    pub(super) there: u64,
    /// How many have no answer, by their reasons, each with an example.
    pub(super) failures: BTreeMap<String, (u64, String)>,
}

#[derive(Deserialize)]
struct Page {
    outputs: Vec<Box<RawValue>>,
    next: Option<u32>,
}

/// As much of an output as is looked at here.
#[derive(Deserialize)]
struct Output {
    at: u32,
    #[serde(default)]
    name: String,
    answer: Option<Box<RawValue>>,
    reason: Option<String>,
    message: Option<String>,
}

/// Writes all of a job that has ended.
pub(super) fn write(
    patient: &Patient,
    phase: &mut Phase,
    (folder, job): (&Folder, &Value),
) -> anyhow::Result<Written> {
    let state = folder.state.as_ref().context("of which job the folder is was not written down")?;
    let inputs = u32::try_from(figure(job, "inputs")).unwrap_or(u32::MAX);
    let mut writing = Writing::begin(folder, state.lines, state.over, text(job, "state"))?;
    let (mut from, mut expected) = (0, 0);
    while from < inputs {
        let path = format!("/v1/jobs/{}/outputs?from={from}&limit={PAGE}", state.job);
        let reply = patient.get(&path, phase)?.ok()?;
        let page: Page = serde_json::from_slice(&reply.body)
            .context("the server tells of outputs in a way that this program does not understand")?;
        for raw in &page.outputs {
            let output: Output = serde_json::from_str(raw.get())
                .context("the server tells of an output in a way that this program does not understand")?;
            anyhow::ensure!(
                output.at >= expected && output.at < inputs,
                "the server tells of outputs in no order"
            );
            writing.holes(expected..output.at)?;
            expected = output.at + 1;
            writing.one(&output, raw.get())?;
        }
        writing.settle()?;
        phase.far((expected.into(), inputs.into()), "", &format!("{expected} of {inputs} outputs written"));
        match page.next {
            Some(next) if next > from => from = next,
            Some(_) => anyhow::bail!("the server gives the same outputs again and again"),
            None => break,
        }
    }
    writing.holes(expected..inputs)?;
    writing.end()
}

struct Writing<'a> {
    folder: &'a Folder,
    over: bool,
    /// The state in which the job ended.
    ended: &'a str,
    lines: Option<BufWriter<File>>,
    failures: BufWriter<File>,
    written: Written,
    /// Files of this run: a name that is given to two inputs would lose one of them.
    names: BTreeSet<String>,
    unsettled: BTreeSet<PathBuf>,
}

impl<'a> Writing<'a> {
    fn begin(folder: &'a Folder, lines: bool, over: bool, ended: &'a str) -> anyhow::Result<Self> {
        let lines = lines.then(|| folder.begin(OUTPUTS)).transpose()?.map(BufWriter::new);
        let failures = BufWriter::new(folder.begin(FAILURES)?);
        let (names, unsettled) = (BTreeSet::new(), BTreeSet::new());
        Ok(Self { folder, over, ended, lines, failures, written: Written::default(), names, unsettled })
    }

    fn one(&mut self, output: &Output, raw: &str) -> anyhow::Result<()> {
        // A line end between two parts of JSON is a blank.
        let line = raw.replace(['\n', '\r'], " ") + "\n";
        if let Some(lines) = &mut self.lines {
            lines.write_all(line.as_bytes())?;
        }
        let Some(answer) = &output.answer else {
            let reason = output.reason.as_deref().unwrap_or("unknown");
            self.failed(reason, output.message.as_deref().unwrap_or_default());
            self.failures.write_all(line.as_bytes())?;
            return if self.over && self.lines.is_none() { self.forget(&output.name) } else { Ok(()) };
        };
        self.written.answers += 1;
        if self.lines.is_some() {
            return Ok(());
        }
        let path = names::output(&output.name).map_err(|why| anyhow::anyhow!("{why}; {AS_LINES}"))?;
        anyhow::ensure!(
            self.names.insert(path.clone()),
            "two inputs are called {:?}, and would have the same output; {AS_LINES}",
            output.name
        );
        if self.folder.put(&path, format!("{}\n", answer.get()).as_bytes(), self.over)? {
            self.unsettled.insert(Path::new(&path).parent().unwrap_or(Path::new("")).to_owned());
        } else {
            self.written.there += 1;
        }
        Ok(())
    }

    /// An older job's output is none of this one's.
    fn forget(&self, name: &str) -> anyhow::Result<()> {
        names::output(name).map_or(Ok(()), |path| self.folder.remove(&path))
    }

    /// Inputs that the job ended before.
    fn holes(&mut self, places: std::ops::Range<u32>) -> anyhow::Result<()> {
        let reason = format!("job_{}", self.ended);
        for at in places {
            let message = "the job ended before it was its turn";
            let line = serde_json::json!({"at": at, "reason": reason, "message": message}).to_string() + "\n";
            if let Some(lines) = &mut self.lines {
                lines.write_all(line.as_bytes())?;
            }
            self.failures.write_all(line.as_bytes())?;
            self.failed(&reason, message);
        }
        Ok(())
    }

    fn failed(&mut self, reason: &str, message: &str) {
        self.written.failures.entry(reason.to_owned()).or_insert_with(|| (0, message.to_owned())).0 += 1;
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        std::mem::take(&mut self.unsettled).iter().try_for_each(|folder| self.folder.settle(folder))
    }

    fn end(mut self) -> anyhow::Result<Written> {
        if let Some(mut lines) = self.lines.take() {
            lines.flush()?;
            self.folder.end(OUTPUTS, lines.get_ref(), self.over)?;
        }
        self.failures.flush()?;
        if self.written.failures.is_empty() {
            self.folder.drop_begun(FAILURES)?;
            if self.over {
                self.folder.remove(FAILURES)?;
            }
        } else {
            self.folder.end(FAILURES, self.failures.get_ref(), self.over)?;
        }
        self.folder.settle(Path::new(""))?;
        Ok(self.written)
    }
}

const AS_LINES: &str = "`modelless job fetch JOB --lines` writes outputs as lines of one file";
