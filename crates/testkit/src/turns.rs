//! Programs that wait to be told: how two sides of a comparison have the machine in turns.
//!
//! A program reads one JSON value a line and answers each with one JSON value a line. Between questions it sleeps in
//! `read`, so the other side has the machine to itself.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

/// Answers questions until the input ends.
pub fn serve(mut answer: impl FnMut(&Value) -> Result<Value>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let question = serde_json::from_str(&line?).context("a question that is no JSON")?;
        let answer = answer(&question)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// A running program. It ends when the value goes.
pub struct Side {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    name: String,
}

impl Side {
    pub fn start(program: &Path, args: &[&str]) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("stdout is piped; this is a bug")?;
        Ok(Self { child, stdin, stdout: BufReader::new(stdout), name })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn ask(&mut self, question: &Value) -> Result<Value> {
        let stdin = self.stdin.as_mut().context("stdin is piped; this is a bug")?;
        writeln!(stdin, "{question}").with_context(|| format!("{} ended early", self.name))?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("{} failed when asked {question}", self.name))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // The end of its input asks it to end; what it started ends with it.
        drop(self.stdin.take());
        let ended = crate::process::wait(&mut self.child, std::time::Duration::from_secs(20));
        if !matches!(ended, Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_answers_line_by_line_and_its_end_is_told() {
        let mut side = Side::start(Path::new("/bin/sh"), &["-c", "read -r line; echo \"[$line]\""]).unwrap();
        assert_eq!(side.ask(&serde_json::json!(7)).unwrap(), serde_json::json!([7]));
        assert!(side.ask(&serde_json::json!(8)).is_err());
    }
}
