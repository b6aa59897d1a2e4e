//! `cargo xtask clients`: which clients of others work here, call by call, as a table that is made anew.
//!
//! One real `modelless up --demo`, the scripts that the end-to-end tests run, and the versions that are really installed. What was seen
//! is kept as JSON; documents get a line for each client and a list of its calls.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use modelless_testkit::clients::{self, Call, Place, SCRIPTS, Verdict};
use modelless_testkit::{Server, packages, server, temp_dir};
use serde_json::{Value, json};

use crate::command::{output, program, target_dir};
use crate::measure::{host, record};
use crate::test::{client_environment, perf_analyzer};
use crate::{measure, root, say};

/// Where what was seen is kept.
const RAW: &str = "bench/results/clients";

/// A client, its version, the script that tried it, and its calls in their order.
struct Client {
    name: String,
    package: String,
    /// None where it is not installed.
    version: Option<String>,
    script: &'static str,
    calls: Vec<Call>,
}

pub(crate) fn run() -> Result<()> {
    let root = root()?;
    let target = target_dir(&root)?;
    let python = client_environment(&root, &target)?;
    let perf_analyzer = perf_analyzer::ensure(&root, &target)?;
    let (program, extra) = match &perf_analyzer {
        Ok(there) => (there.program.display().to_string(), Some(there.package.as_path())),
        Err(why) => (format!("not run: {why}"), None),
    };
    let server = Server::builder()
        .binary(server::binary()?)
        .arg("--demo")
        .arg("--grpc")
        .arg("127.0.0.1:0")
        .arg("--shared-memory")
        .start()?;
    let place = prepare(&root, &server, program)?;
    let mut all = Vec::new();
    for script in SCRIPTS {
        say(format!("running {}", script.file));
        let told = clients::run(&python, &root, script, &place)?;
        let failed = told.calls.iter().any(|call| matches!(call.verdict, Verdict::Failed(_)));
        if failed {
            eprintln!("{}", told.stderr);
        }
        all.extend(by_client(script.file, told.calls));
    }
    server.stop()?;
    let packages: BTreeSet<&str> = all.iter().map(|client: &Client| client.package.as_str()).collect();
    let versions = versions(&root, &python, extra, &packages)?;
    for client in &mut all {
        client.version = versions.get(&client.package).cloned();
    }
    keep(&root, &all)?;
    table::write(&root, &all)?;
    say(table::summary(&all));
    let failed: Vec<String> = all.iter().flat_map(table::failures).collect();
    ensure!(failed.is_empty(), "calls failed:\n{}", failed.join("\n"));
    Ok(())
}

/// Registers tasks of texts beside the demo's.
fn prepare(root: &Path, server: &Server, perf_analyzer: String) -> Result<Place> {
    let register = |make: fn(&Path, &Path) -> Result<()>| {
        let folder = temp_dir("clients")?;
        make(root, folder.path())?;
        measure::register(server, folder.path())
    };
    register(|root, folder| packages::vectors(root, folder, &["onnx"]))?;
    register(|root, folder| packages::classes(root, folder, "deadline"))?;
    let picture = root.join("examples/fashion/pictures/boot.png");
    Ok(Place {
        url: server.url(),
        grpc: server.told("grpc ")?,
        picture: picture.to_str().context("the checkout lies at a path that is no text")?.to_owned(),
        vectors: packages::VECTORS.to_owned(),
        classes: packages::CLASSES.to_owned(),
        perf_analyzer,
    })
}

/// The calls of a script, by the client that made them. The first word of a client's name is its package's.
fn by_client(script: &'static str, calls: Vec<Call>) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    for call in calls {
        if let Some(client) = clients.iter_mut().find(|client| client.name == call.client) {
            client.calls.push(call);
            continue;
        }
        let package =
            call.client.split(' ').next().unwrap_or_default().replace("perf_analyzer", "perf-analyzer");
        let name = call.client.clone();
        clients.push(Client { name, package, version: None, script, calls: vec![call] });
    }
    clients
}

/// What is installed, by package.
fn versions(
    root: &Path,
    python: &Path,
    extra: Option<&Path>,
    packages: &BTreeSet<&str>,
) -> Result<BTreeMap<String, String>> {
    const ASK: &str = "
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(name, version(name))
    except PackageNotFoundError:
        pass
";
    let mut ask = program(root, python);
    ask.args(["-c", ASK]).args(packages);
    if let Some(folder) = extra {
        ask.env("PYTHONPATH", folder);
    }
    let told = output(&mut ask)?;
    let pair = |line: &str| line.split_once(' ').map(|(name, version)| (name.to_owned(), version.to_owned()));
    Ok(told.lines().filter_map(pair).collect())
}

/// Everything that was seen, in one file that each run writes anew: it is of the commit that it stands in.
fn keep(root: &Path, clients: &[Client]) -> Result<()> {
    let call = |call: &Call| match &call.verdict {
        Verdict::Passed => json!({"call": call.call, "passed": true}),
        Verdict::Failed(why) => json!({"call": call.call, "passed": false, "why": why}),
        Verdict::NotRun(why) => json!({"call": call.call, "not_run": why}),
    };
    let client = |client: &Client| {
        json!({"client": client.name, "package": client.package, "version": client.version,
            "script": client.script, "calls": client.calls.iter().map(call).collect::<Vec<_>>()})
    };
    let seen: Vec<Value> = clients.iter().map(client).collect();
    fs::create_dir_all(root.join(RAW))?;
    let file = format!("{RAW}/calls.json");
    let python = output(program(root, "python3").arg("--version"))?;
    let record::Stamp { commit, dirty, date } = record::stamp(root)?;
    let raw = json!({
        "command": "cargo xtask clients", "commit": commit, "dirty": dirty, "date": date, "host": host::facts()?,
        "python": python.trim(), "clients": seen,
    });
    fs::write(root.join(&file), measure::indented(&raw)).with_context(|| format!("writing {file}"))?;
    say(format!("wrote {file}"));
    Ok(())
}
