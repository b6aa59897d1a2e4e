//! Queries that are announced to two nodes in a cluster of real processes, and claimed; and what is left of that when a node is killed.

use crate::cluster::loaded;
use crate::database::Database;
use crate::demo::Place;
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, Response, server};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// More than both nodes have lanes for, so that some of them always wait.
const CLIENTS: u16 = 8;
const LATENCY_MS: u32 = 8_000;
/// Of so many queries it is told in the end what was done with them.
const LAST: usize = 100;

/// A model of which a run takes far longer than the way to a node, and gives back the number that it got.
fn package(folder: &Path) -> Result<()> {
    let models = folder.join("models");
    fs::create_dir_all(&models)?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/engine/tests/models/toils.onnx");
    fs::copy(file, models.join("toils.onnx"))?;
    let tensor = |name: &str| format!("name = \"{name}\"\ndtype = \"FP32\"\nshape = [1]\n");
    let task = "name = \"toil\"\nkind = \"tensor\"\nmetric = \"top-1\"\n";
    fs::write(
        folder.join("task.toml"),
        format!("{task}\n[[inputs]]\n{}\n[[outputs]]\n{}", tensor("x"), tensor("y")),
    )?;
    fs::write(
        models.join("toils.toml"),
        "name = \"toils\"\nversion = 1\narchitecture = \"loop\"\nlicence = \"Apache-2.0\"\naccuracy = 0.9\n\n\
         [adapter]\nkind = \"tensor\"\n\n[[variants]]\nprecision = \"fp32\"\nfile = \"toils.onnx\"\n",
    )?;
    Ok(())
}

fn ask(connection: &mut Connection, number: f32) -> Result<Response> {
    let request = Request::post(&format!("/v1/tasks/toil?latency_ms={LATENCY_MS}"));
    let request = request.header("content-type", "application/octet-stream");
    connection.exchange(&request.body(number.to_le_bytes().to_vec()))
}

/// Whose answer it was, and whether it was the number's own.
fn is_own(response: &Response, number: f32) -> Result<bool> {
    ensure!(response.status == 200, "{response}");
    let told = response.json()?;
    let found = told["outputs"]["y"]["data"][0].as_f64().with_context(|| told.to_string())?;
    Ok((found - f64::from(number)).abs() < 1e-6)
}

/// What its clients saw.
#[derive(Default)]
struct Seen {
    answered: u32,
    wrong: Vec<String>,
    /// The last queries, as the gateway calls them.
    queries: Vec<String>,
}

fn client(gateway: SocketAddr, first: u16, stop: &AtomicBool, seen: &Mutex<Seen>) {
    let mut connection = None;
    for round in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
        let number = f32::from(first) + f32::from(CLIENTS) * f32::from(round % 1_000_u16);
        let answer = || -> Result<Response> {
            let open = match &mut connection {
                Some(open) => open,
                None => connection.insert(Connection::open(gateway)?),
            };
            let response = ask(open, number)?;
            ensure!(is_own(&response, number)?, "{number} was answered by another's: {response}");
            Ok(response)
        }();
        let mut seen = seen.lock().expect("no client panicked");
        match answer {
            Ok(response) => {
                seen.answered += 1;
                seen.queries.extend(response.header("modelless-query").map(str::to_owned));
            }
            Err(error) => {
                seen.wrong.push(format!("{error:#}"));
                connection = None;
            }
        }
    }
}

/// How often something was done with these queries, by what it is called.
fn deeds(gateway: SocketAddr, queries: &[String]) -> Result<BTreeMap<String, u32>> {
    let mut connection = Connection::open(gateway)?;
    let mut deeds = BTreeMap::new();
    for query in queries.iter().rev().take(LAST) {
        let told = connection.exchange(&Request::get(&format!("/v1/queries/{query}/explain")))?.json()?;
        let did = told["decisions"].as_array().into_iter().flatten();
        for deed in did.filter_map(|decision| decision["did"]["action"].as_str()) {
            *deeds.entry(deed.to_owned()).or_default() += 1;
        }
    }
    Ok(deeds)
}

#[test]
fn what_no_node_can_begin_is_claimed_by_whichever_is_free_and_none_is_lost_when_one_is_killed() -> Result<()>
{
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    for name in ["one", "two"] {
        cluster.executor(name, &["executor.lanes=1"])?;
    }
    cluster.scheduler("planner", &[])?;
    let gateway = cluster.gateway("left", &[])?;
    for node in ["name=\"one\"", "name=\"two\""] {
        cluster.wait_for("left", node, Duration::from_secs(30))?;
    }
    let made = place.folder.path().join("toil");
    package(&made)?;
    let mut command = Command::new(server::binary()?);
    command.args(["model", "register"]).arg(&made).args(["--budget", "5s"]);
    let output = command.args(["--server", &format!("http://{gateway}")]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    loaded(gateway, &["one", "two"])?;

    let (stop, seen) = (AtomicBool::new(false), Mutex::new(Seen::default()));
    let more = |queries: u32| -> Result<()> {
        let goal = seen.lock().expect("no client panicked").answered + queries;
        modelless_testkit::wait::until(Duration::from_mins(1), || {
            let Seen { answered, wrong, .. } = &*seen.lock().expect("no client panicked");
            ensure!(wrong.is_empty(), "{} went wrong, such as {}", wrong.len(), wrong[0]);
            Ok(if *answered < goal { Err(format!("{answered} of {goal} were answered")) } else { Ok(()) })
        })
    };
    let result = thread::scope(|scope| {
        for first in 0..CLIENTS {
            let (stop, seen) = (&stop, &seen);
            scope.spawn(move || client(gateway, first, stop, seen));
        }
        let result = (|| {
            more(150)?;
            cluster.kill("two")?;
            more(80)?;
            cluster.start_again("two")?;
            cluster.wait_for("left", "name=\"two\"", Duration::from_secs(30))?;
            more(200)
        })();
        stop.store(true, Ordering::Relaxed);
        result
    });
    result.with_context(|| cluster.output())?;
    let seen = seen.into_inner().expect("no client panicked");
    ensure!(seen.wrong.is_empty(), "{} went wrong, such as {}", seen.wrong.len(), seen.wrong[0]);
    let deeds = deeds(gateway, &seen.queries)?;
    let claimed = deeds.get("claimed").copied().unwrap_or_default();
    let nodes = || -> Result<Response> { Connection::open(gateway)?.exchange(&Request::get("/v1/nodes")) };
    ensure!(claimed >= 20, "of the last {LAST} only {claimed} were claimed: {deeds:?}; nodes: {}", nodes()?);
    for name in ["left", "planner", "one", "two"] {
        ensure!(cluster.drain(name)?.success(), "{name} did not end well");
    }
    Ok(())
}
