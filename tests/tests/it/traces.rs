//! Traces, with OpenTelemetry's own SDK as the client and its own messages at the collector.

use crate::demo::{Demo, fashion};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

#[test]
fn a_clients_trace_goes_on_to_the_models_process() -> Result<()> {
    let python = std::env::var("MODELLESS_PYTHON").context("no Python: run this by `cargo xtask test`")?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/traces.py");
    let mut collector = Command::new(python)
        .args(["-B", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the collector")?;
    let mut lines = BufReader::new(collector.stdout.take().context("its output")?).lines();
    let port = lines.next().context("the collector ended")??;
    let endpoint = format!("http://127.0.0.1:{port}");
    let demo = Demo::start(&["--grpc", "127.0.0.1:0", "--otlp", &endpoint])?;
    let (http, grpc) = (demo.server.url(), demo.server.told("grpc ")?);
    let picture = fashion().join("pictures/boot.png");
    let mut words = collector.stdin.take().context("its input")?;
    writeln!(words, "{http} {grpc} {}", picture.display())?;
    let told: Vec<String> = lines.collect::<Result<_, _>>()?;
    let ended = collector.wait()?;
    let good = told.iter().filter(|line| line.ends_with("\tok")).count();
    ensure!(ended.success() && good == 2, "{told:#?}");
    demo.server.stop()
}
