//! Nodes that are there and yet not: stopped, cut off, killed while the database is away. Each query is answered, or refused
//! by name, by its deadline and a second; and few are refused.

use crate::database::Database;
use crate::demo::{Place, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::process::{self, Other, Signal};
use modelless_testkit::{Connection, Proxy, Request, wait};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Short, so that waiting for a connection to be given up would cost many queries theirs.
const LATENCY: Duration = Duration::from_millis(400);
const CLIENTS: usize = 4;
/// So many that some wait at every node.
const MANY: usize = 64;
/// Between a query's answer and the next query of a client.
const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_mins(1);
/// Queries that have ended before anything happens; and after it: longer, at the clients' pace, than it takes to give up a
/// connection.
const BEFORE: usize = 50;
const AFTER: usize = 400;

struct World {
    cluster: Cluster,
    gateway: SocketAddr,
    /// In front of the database.
    database: Proxy,
    _place: Place,
}

impl World {
    /// Two nodes behind wires, a scheduler, a gateway; all of them reach the database through a wire as well.
    fn start() -> Result<Self> {
        let place = Place::new(Database::Postgres)?;
        let url = place.database_url()?.context("it is on Postgres")?;
        let (database, url) = behind_a_wire(&url)?;
        let mut cluster = Cluster::new(&url, &place.folder.path().join("artefacts"))?;
        for node in ["one", "two"] {
            cluster.executor_behind_a_wire(node, &["executor.lanes=1"])?;
        }
        cluster.scheduler("planner", &[])?;
        let gateway = cluster.gateway("left", &[])?;
        let world = Self { cluster, gateway, database, _place: place };
        settle(&world)?;
        Ok(world)
    }

    /// Nodes with something in memory and nothing on its way there.
    fn active(&self) -> Result<Vec<&'static str>> {
        let answer = Connection::open(self.gateway)?.exchange(&Request::get("/v1/replicas"))?.json()?;
        let replicas = answer["replicas"].as_array().context("a list of replicas")?;
        let settled = |node: &&str| {
            let here: Vec<_> = replicas.iter().filter(|replica| replica["node"] == *node).collect();
            here.iter().any(|replica| replica["state"] == "active")
                && !here.iter().any(|replica| replica["state"] == "loading")
        };
        Ok(["one", "two"].into_iter().filter(settled).collect())
    }
}

/// A wire to a database, and the address of the database behind it.
pub(crate) fn behind_a_wire(url: &str) -> Result<(Proxy, String)> {
    let (before, rest) = url.rsplit_once('@').context("a user in the database's address")?;
    let (host, name) = rest.split_once('/').context("a name in the database's address")?;
    let proxy = Proxy::start()?;
    proxy.lead(host.to_socket_addrs()?.next().context("the database's host has no address")?);
    let url = format!("{before}@{}/{name}", proxy.address());
    Ok((proxy, url))
}

/// How a query ended.
struct Ended {
    took: Duration,
    status: u16,
    what: String,
}

/// Who asks all the time: before something happens, while it does, and until so many queries have ended after it.
struct Load<'a> {
    clients: usize,
    /// Between a query's answer and the next query of a client.
    pause: Duration,
    after: usize,
    /// How many queries have ended.
    ended: &'a AtomicUsize,
}

fn under_load(gateway: SocketAddr, after: usize, happens: impl FnOnce() -> Result<()>) -> Result<Vec<Ended>> {
    let ended = AtomicUsize::new(0);
    Load { clients: CLIENTS, pause: PAUSE, after, ended: &ended }.at(gateway, happens)
}

impl Load<'_> {
    #[expect(clippy::disallowed_methods, reason = "it watches real processes in real time")]
    fn at(&self, gateway: SocketAddr, happens: impl FnOnce() -> Result<()>) -> Result<Vec<Ended>> {
        let (stop, seen) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let ask = || -> Result<()> {
            let target = format!("/v1/tasks/fashion?latency_ms={}", LATENCY.as_millis());
            let request =
                Request::post(&target).header("content-type", "image/png").body(picture("boot.png"));
            let mut connection = Connection::open(gateway)?;
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                let answer = connection.exchange(&request)?;
                let one = Ended { took: began.elapsed(), status: answer.status, what: answer.to_string() };
                seen.lock().map_err(|_| anyhow::anyhow!("a client panicked"))?.push(one);
                self.ended.fetch_add(1, Ordering::Relaxed);
                thread::sleep(self.pause);
            }
            Ok(())
        };
        let ended = || self.ended.load(Ordering::Relaxed);
        let reaches = |count: usize| {
            wait::until(PATIENCE, || {
                Ok(if ended() < count { Err(format!("{} queries", ended())) } else { Ok(()) })
            })
        };
        thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients).map(|_| scope.spawn(ask)).collect();
            let happened =
                reaches(BEFORE).and_then(|()| happens()).and_then(|()| reaches(ended() + self.after));
            stop.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
            }
            happened
        })?;
        seen.into_inner().map_err(|_| anyhow::anyhow!("a client panicked"))
    }
}

/// None was silent for long or without a name; at most so many were refused.
fn few_refused(all: &[Ended], most: usize) -> Result<()> {
    for ended in all {
        ensure!(
            ended.took <= LATENCY + Duration::from_secs(1),
            "told after {:?}: {}",
            ended.took,
            ended.what
        );
        ensure!(ended.status == 200 || ended.what.contains("\"reason\""), "no name: {}", ended.what);
    }
    let refused: Vec<_> = all.iter().filter(|ended| ended.status != 200).collect();
    let told: Vec<String> =
        refused.iter().take(40).map(|ended| format!("after {:?}: {}", ended.took, ended.what)).collect();
    ensure!(refused.len() <= most, "{} of {} were refused:\n{}", refused.len(), all.len(), told.join("\n"));
    Ok(())
}

#[test]
fn what_is_asked_while_the_models_of_a_node_are_held_up_is_answered_by_another() -> Result<()> {
    let mut world = World::start()?;
    let node = world.cluster.pid("one")?;
    let runners = process::children(node)?.into_iter().map(|(pid, _)| Other::open(pid));
    let runners: Vec<Other> = runners.collect::<Result<_>>()?;
    ensure!(!runners.is_empty(), "it runs no models");
    let ended = AtomicUsize::new(0);
    let load = Load { clients: MANY, pause: Duration::ZERO, after: AFTER, ended: &ended };
    let all = load.at(world.gateway, || {
        for runner in &runners {
            runner.signal(Signal::STOP)?;
        }
        // Each client had one query at a node, and half of them at this one; far more are asked after that. Not for so long that the
        // models would be taken for hung.
        let before = ended.load(Ordering::Relaxed);
        let answered = wait::until(Duration::from_millis(900), || {
            let since = ended.load(Ordering::Relaxed) - before;
            Ok(if since >= 4 * MANY { Ok(()) } else { Err(format!("{since} queries ended")) })
        });
        for runner in &runners {
            runner.signal(Signal::CONT)?;
        }
        answered
    });
    let all = all.with_context(|| world.cluster.output())?;
    // What was bound to a batch there when that was held up; were it asked on, it would be as many each time.
    few_refused(&all, MANY * 3 / 4).with_context(|| world.cluster.output())
}

#[test]
fn a_node_that_is_stopped_or_cut_off_is_found_by_its_deadlines_before_its_connection_is_given_up()
-> Result<()> {
    let mut world = World::start()?;
    // Every client may have one query there when it stops; one more each if the node is tried again.
    let most = 2 * CLIENTS;
    let stopped = under_load(world.gateway, AFTER, || world.cluster.freeze("one"));
    few_refused(&stopped?, most).context("stopped")?;
    world.cluster.thaw("one")?;
    settle(&world)?;
    let cut = under_load(world.gateway, AFTER, || world.cluster.cut("two"));
    few_refused(&cut?, most).with_context(|| format!("cut off\n{}", world.cluster.output()))?;
    world.cluster.mend("two")?;
    settle(&world)?;
    let severed = under_load(world.gateway, AFTER, || world.cluster.sever("one"));
    few_refused(&severed?, 0).context("its connections ended")?;
    world.cluster.mend("one")?;
    settle(&world)
}

#[test]
fn a_node_that_dies_while_the_database_is_away_is_missed_at_once() -> Result<()> {
    let mut world = World::start()?;
    let killed = under_load(world.gateway, AFTER, || {
        world.database.cut();
        world.cluster.wait_for("left", "the store does not answer", PATIENCE)?;
        world.cluster.kill("one")
    });
    few_refused(&killed?, 0)?;
    // It must also be able to come back: a table is made without the database.
    world.database.mend();
    world.cluster.start_again("one")?;
    settle(&world)
}

#[test]
fn every_process_ends_while_the_database_is_cut_off() -> Result<()> {
    let mut world = World::start()?;
    world.database.cut();
    // By now their questions have no answers.
    world.cluster.wait_for("left", "the store does not answer", PATIENCE)?;
    for name in ["one", "two", "planner", "left"] {
        let ended = world.cluster.drain(name)?;
        ensure!(ended.success(), "{name}: {ended}");
    }
    Ok(())
}

/// Waits until both nodes serve.
fn settle(world: &World) -> Result<()> {
    wait::until(PATIENCE, || {
        let active = world.active()?;
        Ok(if active == ["one", "two"] { Ok(()) } else { Err(format!("{active:?} serve")) })
    })
    .with_context(|| format!("a node did not load\n{}", world.cluster.output()))
}
