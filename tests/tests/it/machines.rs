//! Machines that come and go: a scheduler that starts executors as processes when more is asked, and lets them go when it is not.

use crate::cluster::{Load, loaded};
use crate::database::Database;
use crate::demo::{Place, picture};
use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, process, wait};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(2);

/// A cluster whose nodes are machines of a pool `p`, which end with it: they outlive whoever started them.
struct Bed {
    cluster: Cluster,
    place: Place,
    name: String,
}

impl Drop for Bed {
    fn drop(&mut self) {
        for pid in self.processes() {
            process::kill(pid);
        }
    }
}

impl Bed {
    fn new(what: &str) -> Result<Self> {
        let place = Place::new(Database::Postgres)?;
        let database = place.database_url()?.context("it is on Postgres")?;
        let cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
        Ok(Self { cluster, place, name: format!("{what}-{}", std::process::id()) })
    }

    /// A scheduler with 1 to `most` machines, each of which is enough for some ten queries a second.
    fn scheduler(&mut self, name: &str, most: u32) -> Result<()> {
        self.scheduler_with(name, 1, most)
    }

    /// The same with at least so many.
    fn scheduler_with(&mut self, name: &str, least: u32, most: u32) -> Result<()> {
        let folder = self.place.folder.path();
        let text = format!(
            "busy = 0.0005\nremembered-s = 10\ninterval-ms = 100\nbudget = 1.0\n[pools.p]\nleast = {least}\nmost = {most}\n\
             price = 0.1\nset = [\"executor.lanes=1\", \"artefacts={}\"]\n[pools.p.process]\nlogs = \"{}\"\n",
            folder.join("artefacts").display(),
            folder.join("logs").display()
        );
        let path = folder.join(format!("{name}.toml"));
        fs::write(&path, text)?;
        let (pools, cluster) = (format!("pools={}", path.display()), format!("cluster={}", self.name));
        self.cluster.scheduler(name, &[&pools, &cluster])
    }

    fn gateway(&mut self) -> Result<SocketAddr> {
        let cluster = format!("cluster={}", self.name);
        self.cluster.gateway("left", &[&cluster])
    }

    /// Executors of this cluster that really run.
    fn processes(&self) -> Vec<u32> {
        process::machines(&self.name)
    }

    /// Waits until exactly so many machines are there, all of which have joined; and looks on the way that there are never more than may be.
    fn settles(&self, gateway: SocketAddr, many: usize, most: usize) -> Result<Vec<String>> {
        wait::until(PATIENCE, || {
            let running = self.processes().len();
            ensure!(running <= most, "{running} machines run, and {most} may");
            let answer = machines(gateway)?;
            let open = answer["machines"].as_array().map_or(&[][..], Vec::as_slice);
            let open: Vec<&Value> =
                open.iter().filter(|of| of["state"] != "gone" && of["state"] != "failed").collect();
            let joined = open.iter().all(|machine| machine["state"] == "joined");
            let name = |machine: &&Value| machine["name"].as_str().unwrap_or_default().to_owned();
            let names = open.iter().map(name).collect();
            let there = open.len() == many && joined && running == many;
            Ok(if there { Ok(names) } else { Err(answer.to_string()) })
        })
        .with_context(|| self.cluster.output())
    }
}

fn machines(gateway: SocketAddr) -> Result<Value> {
    Connection::open(gateway)?.exchange(&Request::get("/v1/machines"))?.json()
}

/// How many machines a dry run says would be started.
fn would_start(gateway: SocketAddr, query: &str) -> Result<usize> {
    let path = format!("/v1/plans/next{query}");
    let next = Connection::open(gateway)?.exchange(&Request::get(&path))?.json()?;
    let steps = next["machines"]["steps"].as_array().with_context(|| format!("{path}: {next}"))?;
    Ok(steps.iter().filter(|step| step["step"] == "start").count())
}

#[test]
fn machines_come_when_more_is_asked_and_go_when_it_is_not_and_no_query_notices() -> Result<()> {
    let mut bed = Bed::new("come-and-go")?;
    bed.scheduler("planner", 3)?;
    let gateway = bed.gateway()?;
    let names = bed.settles(gateway, 1, 3)?;
    loaded(gateway, &[&names[0]])?;
    // What would be done is told before it is: without this machine another comes, and for more queries more do.
    ensure!(would_start(gateway, &format!("?without={}", names[0]))? == 1, "in its place");
    ensure!(would_start(gateway, "?demand=fashion=1000")? == 2, "as many as may be");
    ensure!(would_start(gateway, "")? == 0 && bed.processes().len() == 1, "nothing of that was done");

    let load = Load::default();
    let result = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| load.follow(&[gateway], 0));
        }
        let result = (|| {
            let names = bed.settles(gateway, 3, 3)?;
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            loaded(gateway, &names)?;
            load.more(100)?;
            load.none_wrong("while machines came")?;
            // Fewer may be there by now: one goes in the middle of all this.
            bed.cluster.kill("planner")?;
            bed.scheduler("follower", 2)?;
            bed.settles(gateway, 2, 3)?;
            load.more(100)?;
            load.none_wrong("while a machine went, its scheduler killed and followed")
        })();
        load.end();
        result
    });
    result.with_context(|| bed.cluster.output())?;

    bed.settles(gateway, 1, 2)?;
    let answer = machines(gateway)?;
    let count = |state: &str| {
        let all = answer["machines"].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().filter(|machine| machine["state"] == state).count()
    };
    ensure!((count("joined"), count("gone"), count("failed")) == (1, 2, 0), "{answer}");
    let pools = Connection::open(gateway)?.exchange(&Request::get("/v1/pools"))?.json()?;
    let pool = &pools["pools"][0];
    ensure!(pool["name"] == "p" && pool["there"] == 1 && pool["start_up"]["samples"] == 3, "{pools}");
    ensure!(bed.cluster.drain("follower")?.success() && bed.cluster.drain("left")?.success(), "a bad end");
    ensure!(bed.processes().len() == 1, "machines stay when their scheduler ends");
    Ok(())
}

#[test]
fn where_there_may_be_no_machine_the_first_query_has_one_come_and_it_goes_when_nobody_asks() -> Result<()> {
    let mut bed = Bed::new("from-zero")?;
    // What there is to be served is measured by somebody first.
    bed.scheduler("measurer", 1)?;
    let gateway = bed.gateway()?;
    let names = bed.settles(gateway, 1, 1)?;
    loaded(gateway, &[&names[0]])?;
    ensure!(bed.cluster.drain("measurer")?.success(), "a bad end");
    bed.scheduler_with("planner", 0, 1)?;
    bed.settles(gateway, 0, 1)?;

    let ask = || -> Result<_> {
        let query = Request::post("/v1/tasks/fashion").header("content-type", "image/png");
        let query = query.body(picture("shirt.png"));
        Connection::open(gateway)?.exchange(&query)
    };
    let refused = ask()?;
    ensure!((refused.status, &refused.json()?["reason"]) == (503, &"nothing_runnable".into()), "{refused}");
    wait::until(PATIENCE, || {
        let answer = ask()?;
        ensure!(matches!(answer.status, 200 | 503), "{answer}");
        Ok(if answer.status == 200 { Ok(()) } else { Err(answer.to_string()) })
    })
    .with_context(|| bed.cluster.output())?;
    bed.settles(gateway, 0, 1)?;

    // A job waits for spare time and has no machine come. One that is pressed for time is asked as queries are.
    let post = |path: &str, body: &Value| {
        Connection::open(gateway)?.exchange(&Request::post(path).json(body))?.json()
    };
    let job = post("/v1/jobs", &json!({"task": "fashion", "inputs": 1, "deadline_s": 1}))?;
    let path = format!("/v1/jobs/{}", job["job"]);
    let input = json!({"at": 0, "name": "shirt.png", "type": "image/png", "data": STANDARD.encode(picture("shirt.png"))});
    post(&format!("{path}/inputs"), &json!({"inputs": [input]}))?;
    post(&format!("{path}/start"), &Value::Null)?;
    wait::until(PATIENCE, || {
        let job = Connection::open(gateway)?.exchange(&Request::get(&path))?.json()?;
        let done = job["state"] == "done" && job["done"] == 1;
        Ok(if done { Ok(()) } else { Err(job.to_string()) })
    })
    .with_context(|| bed.cluster.output())?;
    bed.settles(gateway, 0, 1)?;
    Ok(())
}

#[test]
fn a_scheduler_killed_while_it_asks_for_a_machine_leaves_one_and_not_two() -> Result<()> {
    let mut bed = Bed::new("killed")?;
    bed.scheduler("planner", 1)?;
    bed.cluster.wait_for("planner", "state=\"asked\"", PATIENCE)?;
    bed.cluster.kill("planner")?;
    bed.scheduler("follower", 1)?;
    let gateway = bed.gateway()?;
    let names = bed.settles(gateway, 1, 1)?;
    ensure!(names == ["p-1"], "{names:?}: the one that was asked for is the one that is there");

    // One that dies is followed by another.
    let [only] = bed.processes()[..] else { anyhow::bail!("there is one") };
    process::kill(only);
    wait::until(PATIENCE, || {
        // It may take a moment until anybody notices.
        let names = bed.settles(gateway, 1, 1)?;
        Ok(if names == ["p-2"] { Ok(()) } else { Err(format!("{names:?}")) })
    })
}
