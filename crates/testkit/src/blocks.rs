//! Timed loops in blocks, as programs that wait to be told: how two sides are measured in turns.
//!
//! A loop program reads lines `COUNT GAP_US` and answers each with one line of JSON: every latency in
//! nanoseconds, and the wall and CPU time of the block. Between blocks it sleeps in `read`, so the other side has
//! the machine to itself.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::process;

/// Serves blocks of `once` until the input ends.
pub fn serve(mut once: impl FnMut() -> Result<()>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (count, gap) = line.split_once(' ').context("a line `COUNT GAP_US`")?;
        let (count, gap): (usize, u64) = (count.parse()?, gap.parse()?);
        let mut latencies = Vec::with_capacity(count);
        let (cpu, wall) = (process::own_cpu_time(), Instant::now());
        for _ in 0..count {
            if gap > 0 {
                std::thread::sleep(Duration::from_micros(gap));
            }
            let started = Instant::now();
            once()?;
            latencies.push(nanos(started.elapsed()));
        }
        let block = json!({
            "wall_ns": nanos(wall.elapsed()),
            "cpu_ns": nanos(process::own_cpu_time().saturating_sub(cpu)),
            "latency_ns": latencies,
        });
        let mut out = std::io::stdout().lock();
        writeln!(out, "{block}")?;
        out.flush()?;
    }
    Ok(())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What one block came to.
#[derive(Clone, Debug)]
pub struct Block {
    pub latency_ns: Vec<u64>,
    pub wall_ns: u64,
    pub cpu_ns: u64,
}

/// A running loop program.
pub struct Loop {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    name: String,
}

impl Loop {
    pub fn start(program: &Path, args: &[&str]) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let stdin = child.stdin.take().context("stdin is piped; this is a bug")?;
        let stdout = child.stdout.take().context("stdout is piped; this is a bug")?;
        Ok(Self { child, stdin, stdout: BufReader::new(stdout), name })
    }

    pub fn block(&mut self, count: usize, gap: Duration) -> Result<Block> {
        writeln!(self.stdin, "{count} {}", gap.as_micros())
            .with_context(|| format!("{} ended early", self.name))?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let value: Value = serde_json::from_str(&line).with_context(|| format!("{} failed", self.name))?;
        let latency_ns: Vec<u64> =
            value["latency_ns"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        ensure!(latency_ns.len() == count, "{} made {} of {count} rounds", self.name, latency_ns.len());
        let number = |key: &str| value[key].as_u64().with_context(|| format!("{} tells no {key}", self.name));
        Ok(Block { latency_ns, wall_ns: number("wall_ns")?, cpu_ns: number("cpu_ns")? })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
