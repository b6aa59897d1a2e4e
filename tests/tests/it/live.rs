//! What processes of a cluster tell each other through Redis: that something changed, and what is asked for.

use crate::database::Database;
use crate::demo::{Place, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, wait};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to Redis as a person with `nc` has it.
struct Redis(BufReader<TcpStream>);

impl Redis {
    fn open(cluster: &Cluster) -> Result<Self> {
        let url = cluster.redis.url();
        let stream = TcpStream::connect(url.strip_prefix("redis://").context("an address of a Redis")?)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    fn say(&mut self, command: &str) -> Result<()> {
        Ok(self.0.get_mut().write_all(format!("{command}\r\n").as_bytes())?)
    }

    /// Reads until a line is what is looked for.
    fn find_line(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(self.0.read_line(&mut line)? > 0, "Redis hung up");
            if wanted(line.trim()) {
                return Ok(line.trim().to_owned());
            }
        }
    }

    /// Reads until a line is the JSON that is looked for.
    fn find(&mut self, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let is = |line: &str| serde_json::from_str(line).is_ok_and(|found| wanted(&found));
        Ok(serde_json::from_str(&self.find_line(is)?)?)
    }
}

#[test]
fn changes_are_told_and_demand_is_counted() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    let mut notices = Redis::open(&cluster)?;
    // Between the cluster's name and what is kept stands which database its members serve.
    notices.say("PSUBSCRIBE modelless:default:*:notices")?;
    cluster.scheduler("planner", &[])?;
    cluster.executor("one", &["executor.lanes=1"])?;
    // The node is new to the scheduler, so there is a new plan.
    notices.find(|notice| notice["notice"] == "plan").context("no plan was told")?;
    let gateway = cluster.gateway("left", &[])?;
    let mut connection = Connection::open(gateway)?;
    let task = json!({"name": "another", "kind": "tensor", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}]});
    let made = connection.exchange(&Request::post("/v1/tasks").json(&task))?;
    ensure!(made.status == 201, "{made}");
    notices.find(|notice| notice["notice"] == "catalog").context("no change of the catalogue was told")?;

    let ask = Request::post("/v1/tasks/fashion?latency_ms=20000").header("content-type", "image/png");
    let ask = ask.body(picture("boot.png"));
    for _ in 0..3 {
        let answer = connection.exchange(&ask)?;
        ensure!(answer.status == 200, "{answer}");
    }
    let mut redis = Redis::open(&cluster)?;
    wait::until(PATIENCE, || {
        redis.say("KEYS modelless:default:*:member:gateway:left:said")?;
        if redis.find_line(|line| line.starts_with('*'))? == "*0" {
            return Ok(Err("nothing is told of the gateway".to_owned()));
        }
        let key = redis.find_line(|line| line.starts_with("modelless:"))?;
        redis.say(&format!("GET {key}"))?;
        let member = redis.find(Value::is_object)?;
        let told = member["demand"][0]["arrived"] == 3 && member["demand"][0]["in_time"] == 3;
        Ok(if told { Ok(()) } else { Err(member.to_string()) })
    })
    .context("the gateway tells of no demand")
}

#[test]
fn a_node_with_a_folder_of_its_own_fetches_what_it_lacks_and_who_has_no_key_is_not_joined() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    let elsewhere = modelless_testkit::temp_dir("elsewhere")?;
    let file = elsewhere.path().join("key");
    std::fs::write(&file, "a key that nobody would guess\n")?;
    let key = format!("key_file={}", file.display());
    let own = format!("artefacts={}", elsewhere.path().join("artefacts").display());
    cluster.executor("far", &["executor.lanes=1", &key, &own])?;
    cluster.executor("keyless", &["executor.lanes=1"])?;
    cluster.scheduler("planner", &[&key])?;
    let gateway = cluster.gateway("left", &[&key])?;
    cluster.wait_for("left", "does not prove that it has this cluster's key", PATIENCE)?;

    let ask = Request::post("/v1/tasks/fashion?latency_ms=20000").header("content-type", "image/png");
    let ask = ask.body(picture("boot.png"));
    let answer = wait::until(PATIENCE, || {
        let answer = Connection::open(gateway)?.exchange(&ask)?;
        Ok(if answer.status == 200 { Ok(answer) } else { Err(answer.to_string()) })
    })
    .with_context(|| cluster.output())?;
    ensure!(answer.header("modelless-node") == Some("far"), "{answer}");
    cluster.wait_for("far", "fetched an artefact", PATIENCE)?;
    let nodes = Connection::open(gateway)?.exchange(&Request::get("/v1/nodes"))?.json()?;
    let there = nodes["nodes"].as_array().context("a list of nodes")?;
    let connected: Vec<&Value> = there.iter().filter(|node| node["connected"] == true).collect();
    ensure!(
        connected.len() == 1 && connected[0]["name"] == "far",
        "a node without the key was joined: {nodes}"
    );
    Ok(())
}
