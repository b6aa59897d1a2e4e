//! A cluster of real processes: two gateways, two nodes, a scheduler, Postgres, Redis; and what is left while parts of
//! it are killed, stopped and drained under load.

use crate::database::Database;
use crate::demo::{Place, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, Response, wait};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What each query asks for; none may take longer than this and a second.
const LATENCY: Duration = Duration::from_secs(3);

/// Clients that never stop asking.
#[derive(Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    seen: Mutex<Seen>,
    more: Condvar,
}

#[derive(Default)]
struct Seen {
    answered: u64,
    /// What was no answer, or came too late.
    wrong: Vec<String>,
}

impl Load {
    #[expect(clippy::disallowed_methods, reason = "it watches real processes in real time")]
    fn ask(&self, gateway: SocketAddr) {
        let mut connection = None;
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let answer = ask(&mut connection, gateway);
            let took = began.elapsed();
            if !matches!(&answer, Ok(response) if response.status == 200) {
                connection = None;
            }
            self.note(answer, took);
        }
    }

    /// A client that goes to another gateway when its own asks it to close the connection, or is not ready: as one behind a
    /// balancer does. It never asks a query twice.
    #[expect(clippy::disallowed_methods, reason = "it watches real processes in real time")]
    pub(crate) fn follow(&self, gateways: &[SocketAddr], home: usize) {
        let mut connection = None;
        while !self.stop.load(Ordering::Relaxed) {
            if connection.is_none() {
                let order = gateways.iter().cycle().skip(home).take(gateways.len());
                connection = order.map(|gateway| ready(*gateway)).find_map(Result::ok);
            }
            let Some(open) = connection.as_mut() else { continue };
            let began = Instant::now();
            let answer = open.exchange(&request());
            let took = began.elapsed();
            let goes_on = matches!(&answer, Ok(response) if response.header("connection") != Some("close"));
            self.note(answer, took);
            if !goes_on {
                connection = None;
            }
        }
    }

    fn note(&self, answer: Result<Response>, took: Duration) {
        let mut seen = self.seen();
        let in_time = took < LATENCY + Duration::from_secs(1);
        if matches!(&answer, Ok(response) if response.status == 200) && in_time {
            seen.answered += 1;
        } else {
            let what = answer.map_or_else(|error| format!("{error:#}"), |response| response.to_string());
            seen.wrong.push(format!("{what} after {took:?}"));
        }
        drop(seen);
        self.more.notify_all();
    }

    /// Nobody asks any longer.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self) -> u64 {
        self.seen().answered
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until so many more were answered.
    pub(crate) fn more(&self, queries: u64) -> Result<()> {
        let seen = self.seen();
        let goal = seen.answered + queries;
        let waited = self.more.wait_timeout_while(seen, Duration::from_mins(1), |seen| seen.answered < goal);
        let in_time = !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        ensure!(in_time, "hardly anything is answered any longer");
        Ok(())
    }

    pub(crate) fn none_wrong(&self, when: &str) -> Result<()> {
        let wrong = std::mem::take(&mut self.seen().wrong);
        ensure!(wrong.is_empty(), "{when}: {} queries went wrong, such as {}", wrong.len(), &wrong[0]);
        Ok(())
    }
}

fn ask(connection: &mut Option<Connection>, gateway: SocketAddr) -> Result<Response> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(Connection::open(gateway)?),
    };
    open.exchange(&request())
}

fn request() -> Request {
    Request::post(&format!("/v1/tasks/fashion?latency_ms={}", LATENCY.as_millis()))
        .header("content-type", "image/png")
        .body(picture("boot.png"))
}

/// A connection to a gateway, if that is ready.
fn ready(gateway: SocketAddr) -> Result<Connection> {
    let mut open = Connection::open(gateway)?;
    let answer = open.exchange(&Request::get("/v2/health/ready"))?;
    ensure!(answer.status == 200 && answer.header("connection") != Some("close"), "{answer}");
    Ok(open)
}

/// Waits until a gateway knows of each of these nodes that it has something in memory, and nothing on its way there.
pub(crate) fn loaded(gateway: SocketAddr, nodes: &[&str]) -> Result<()> {
    wait::until(Duration::from_mins(1), || {
        let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/replicas"))?.json()?;
        let Some(replicas) = answer["replicas"].as_array() else { return Ok(Err(answer.to_string())) };
        let states = |node: &str| {
            let here = replicas.iter().filter(|replica| replica["node"] == node);
            here.map(|replica| replica["state"].clone()).collect::<Vec<_>>()
        };
        let settled = |node: &&str| {
            let states = states(node);
            states.iter().any(|state| state == "active") && !states.iter().any(|state| state == "loading")
        };
        Ok(if nodes.iter().all(settled) { Ok(()) } else { Err(answer.to_string()) })
    })
    .context("the nodes never loaded")
}

#[test]
fn a_cluster_answers_every_query_while_its_parts_are_killed_stopped_and_drained() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1"])?;
    cluster.executor("two", &["executor.lanes=1"])?;
    cluster.scheduler("planner", &[])?;
    let gateways = [cluster.gateway("left", &[])?, cluster.gateway("right", &[])?];
    let both = Duration::from_secs(30);
    for gateway in ["left", "right"] {
        for node in ["name=\"one\"", "name=\"two\""] {
            cluster.wait_for(gateway, node, both)?;
        }
    }

    for gateway in &gateways {
        loaded(*gateway, &["one", "two"])?;
    }

    let load = Load::default();
    let result = thread::scope(|scope| {
        for gateway in gateways.iter().cycle().take(4) {
            scope.spawn(|| load.ask(*gateway));
        }
        let result = losses(&mut cluster, &gateways, &load);
        load.stop.store(true, Ordering::Relaxed);
        result
    });
    result.with_context(|| cluster.output())?;
    for name in ["left", "right", "planner", "two"] {
        ensure!(cluster.drain(name)?.success(), "{name} did not end well");
    }
    Ok(())
}

fn losses(cluster: &mut Cluster, gateways: &[SocketAddr], load: &Load) -> Result<()> {
    load.more(100)?;
    load.none_wrong("with all there")?;

    cluster.redis.kill();
    load.more(300)?;
    load.none_wrong("without Redis")?;
    cluster.redis.start_again()?;
    load.more(100)?;
    load.none_wrong("with an empty Redis")?;

    cluster.kill("planner")?;
    load.more(100)?;
    load.none_wrong("without a scheduler")?;

    cluster.kill("two")?;
    load.more(200)?;
    load.none_wrong("after a node was killed")?;
    cluster.executor("two", &["executor.lanes=1"])?;
    cluster.scheduler("planner", &[])?;
    for gateway in gateways {
        loaded(*gateway, &["two"])?; // all that is left while the other one is stopped
    }
    load.more(100)?;
    load.none_wrong("with the node back")?;

    // Longer than it takes to be called lost.
    cluster.freeze("one")?;
    cluster.wait_for("left", "nothing was heard for", Duration::from_secs(30))?;
    cluster.wait_for("right", "nothing was heard for", Duration::from_secs(30))?;
    load.more(200)?;
    load.none_wrong("with a node that was stopped")?;
    cluster.thaw("one")?;
    load.more(100)?;
    load.none_wrong("with the stopped node going on")?;

    ensure!(cluster.drain("one")?.success(), "a node did not drain well");
    load.more(100)?;
    load.none_wrong("after a node was drained")
}

#[test]
fn a_node_that_is_named_and_found_has_one_connection() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1"])?;
    // By another name than it announces itself by.
    let address = cluster.node_address("one")?.replace("127.0.0.1", "localhost");
    cluster.gateway("left", &[&format!("nodes=[\"{address}\"]")])?;
    // By then the gateway has found whoever announced himself before.
    cluster.executor("two", &["executor.lanes=1"])?;
    let patience = Duration::from_secs(30);
    cluster.wait_for("left", "name=\"two\"", patience)?;
    let stands = |cluster: &mut Cluster| -> Result<(usize, usize)> {
        let log = cluster.log("one")?;
        let lines = |word: &str| log.lines().filter(|line| line.contains(word)).count();
        Ok((lines("a gateway is there"), lines("a gateway is gone")))
    };
    let one_more = |(came, went): (usize, usize)| {
        if came == went + 1 { Ok(()) } else { Err(format!("{came} came, {went} went")) }
    };
    wait::until(patience, || Ok(one_more(stands(&mut cluster)?))).with_context(|| cluster.output())?;
    // Two at most: the announcement may have come before the one that was named had said who it is.
    let (came, _) = stands(&mut cluster)?;
    ensure!(came <= 2, "it was connected to {came} times\n{}", cluster.output());
    Ok(())
}

#[test]
fn a_setting_that_does_not_exist_is_refused_with_the_one_that_was_meant() -> Result<()> {
    let binary = modelless_testkit::server::binary()?;
    for role in ["gateway", "executor", "scheduler"] {
        let wrong = std::process::Command::new(&binary).args([role, "--set", "databas=x"]).output()?;
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        ensure!(
            wrong.status.code() == Some(64) && said.contains("did you mean `database`"),
            "{role}: {said}"
        );
        let shown = std::process::Command::new(&binary).args([role, "--print-config"]).output()?;
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        ensure!(shown.status.success() && text.contains("cluster = \"default\""), "{role}: {text}");
    }
    Ok(())
}
