//! Machines of EC2, as moto answers for it: a real scheduler that is killed and loses what it knew, and machines that are really
//! there, each in a room of its own, and become nodes by the script that is shipped.

use crate::cluster::{Load, loaded};
use crate::database::{Database, sql};
use crate::demo::Place;
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Hypervisor, Moto, Request, moto, server, wait};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(2);

struct Bed {
    cluster: Cluster,
    place: Place,
    ec2: Arc<Moto>,
    /// Beyond what every pool of EC2 has.
    more: Value,
    /// Settings of schedulers and gateways.
    settings: Vec<String>,
}

impl Bed {
    fn new(what: &str) -> Result<Self> {
        let place = Place::new(Database::Postgres)?;
        let database = place.database_url()?.context("it is on Postgres")?;
        let cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
        let ec2 = Arc::new(Moto::start()?);
        fs::write(place.folder.path().join("keys"), ec2.credentials())?;
        let settings = vec![format!("cluster={what}-{}", std::process::id())];
        Ok(Self { cluster, place, ec2, more: json!({}), settings })
    }

    fn database(&self) -> Result<String> {
        self.place.database_url()?.context("it is on Postgres")
    }

    /// One that keeps `least` to `most` machines.
    fn scheduler(&mut self, name: &str, (least, most): (u32, u32), pool: &Value) -> Result<()> {
        let folder = self.place.folder.path();
        let mut ec2 = moto::pool(&self.ec2, self.ec2.address(), &folder.join("keys"));
        let all = ec2.as_object_mut().context("it is a table")?;
        all.extend(self.more.as_object().context("it is a table")?.clone());
        ec2["list-every-s"] = json!(0.2);
        let mut of = json!({"least": least, "most": most, "ec2": ec2});
        of.as_object_mut().context("it is a table")?.extend(pool.as_object().context("a table")?.clone());
        // The dearest of its types is what counts against the budget.
        let prices = json!({"source": "a list", "as-of": "2026-01-19", "usd-per-hour": {"c5.large": 0.085, "m5.large": 0.096}});
        let file = json!({"budget": 1.0, "interval-ms": 100, "remembered-s": 10, "prices": prices, "pools": {"cloud": of}});
        let path = folder.join(format!("{name}.toml"));
        fs::write(&path, moto::to_toml(&file))?;
        let pools = format!("pools={}", path.display());
        let mut settings = self.settings.clone();
        settings.push(pools);
        self.cluster.scheduler(name, &settings.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn gateway(&mut self) -> Result<SocketAddr> {
        let settings = self.settings.clone();
        self.cluster.gateway("left", &settings.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Ids of the machines that EC2 has, never more than these.
    fn there(&self, most: usize) -> Result<Vec<String>> {
        let running = self.ec2.running()?;
        ensure!(running.len() <= most, "{} machines are there, and {most} may be", running.len());
        let mut ids: Vec<String> =
            running.iter().map(|one| one["id"].as_str().unwrap_or_default().to_owned()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Waits until it is so of what EC2 has and of what is written down: names and states, those that ended left out.
    fn until(
        &self,
        gateway: SocketAddr,
        most: usize,
        so: impl Fn(&[String], &[(String, String)]) -> bool,
    ) -> Result<()> {
        wait::until(PATIENCE, || {
            let there = self.there(most)?;
            let answer = get(gateway, "/v1/machines")?;
            let text = |machine: &Value, name: &str| machine[name].as_str().unwrap_or_default().to_owned();
            let all = answer["machines"].as_array().map_or(&[][..], Vec::as_slice);
            let open = all.iter().map(|of| (text(of, "instance"), text(of, "state")));
            let mut open: Vec<_> = open.filter(|(_, state)| state != "gone" && state != "failed").collect();
            open.sort_unstable();
            Ok(if so(&there, &open) { Ok(()) } else { Err(format!("{there:?} {answer}")) })
        })
        .with_context(|| self.cluster.output())
    }
}

fn get(gateway: SocketAddr, path: &str) -> Result<Value> {
    Connection::open(gateway)?.exchange(&Request::get(path))?.json()
}

/// All that EC2 has is written down, in this state.
fn are(many: usize, state: &str) -> impl Fn(&[String], &[(String, String)]) -> bool {
    move |there, open| {
        let same = there.iter().zip(open).all(|(id, (instance, of))| id == instance && of == state);
        there.len() == many && open.len() == many && same
    }
}

#[test]
fn moto_has_never_more_machines_than_may_be_and_they_are_found_again_by_a_scheduler_that_knows_nothing()
-> Result<()> {
    let mut bed = Bed::new("found")?;
    // A node that is no machine of the pool: a gateway is ready once one has spoken, and these machines never do.
    let settings = bed.settings.clone();
    bed.cluster.executor("home", &settings.iter().map(String::as_str).collect::<Vec<_>>())?;
    let gateway = bed.gateway()?;
    let slow = json!({"joins-within-s": 600.0});
    // Killed while it asks, and nobody hears the first answers.
    bed.ec2.faults(&json!({"lose": 2, "none_of": ["c5.large"]}))?;
    bed.scheduler("planner", (2, 2), &slow)?;
    bed.cluster.wait_for("planner", "state=\"asked\"", PATIENCE)?;
    bed.cluster.kill("planner")?;
    bed.scheduler("follower", (2, 2), &slow)?;
    bed.until(gateway, 2, are(2, "starting"))?;
    let ids = bed.there(2)?;
    let pool = &get(gateway, "/v1/pools")?["pools"][0];
    ensure!(pool["price_usd_per_hour"] == 0.096, "{pool}");
    ensure!(pool["price_source"] == "a list as of 2026-01-19: m5.large", "{pool}");

    // What was written down is lost, and what EC2 has is not.
    bed.cluster.kill("follower")?;
    sql(&bed.database()?, "DELETE FROM machines; DELETE FROM machine_changes; DELETE FROM pools")?;
    bed.scheduler("third", (2, 2), &slow)?;
    bed.until(gateway, 2, are(2, "starting"))?;
    ensure!(bed.there(2)? == ids, "the same machines: {ids:?}");
    let changes = get(gateway, "/v1/machines?changes=100")?["changes"].to_string();
    ensure!(changes.contains("found at its provider"), "{changes}");

    // Fewer may be there, while nothing is written down: what is too many goes.
    bed.cluster.kill("third")?;
    sql(&bed.database()?, "DELETE FROM machines; DELETE FROM machine_changes; DELETE FROM pools")?;
    bed.scheduler("fourth", (1, 1), &slow)?;
    bed.until(gateway, 2, are(1, "starting"))?;
    ensure!(ids.contains(&bed.there(1)?[0]), "one of those that were there stays");
    // One that dies is followed by another, by the type that is to be had again.
    bed.ec2.faults(&json!({"none_of": []}))?;
    let stayed = bed.there(1)?;
    bed.ec2.end(&stayed[0])?;
    bed.until(gateway, 1, |there, open| are(1, "starting")(there, open) && there != stayed)?;
    ensure!(bed.ec2.running()?[0]["type"] == "c5.large", "the first of its types");
    Ok(())
}

#[test]
fn moto_boots_machines_that_become_nodes_by_the_script_that_is_shipped_and_leave_when_ec2_says_so()
-> Result<()> {
    let mut bed = Bed::new("booted")?;
    let hosts = Hypervisor::start(Arc::clone(&bed.ec2), &server::binary()?, Duration::from_secs(1))?;
    let (database, redis) = (hosts.reach(&bed.database()?)?, hosts.reach(&bed.cluster.redis.url())?);
    bed.settings.extend([format!("database={database}"), format!("redis={redis}")]);
    let key = bed.place.folder.path().join("cluster.key");
    fs::write(&key, "0123456789abcdef0123456789abcdef")?;
    bed.settings.push(format!("key_file={}", key.display()));
    bed.more = json!({"spot": "first", "join": hosts.join()});
    let lanes = json!({"set": ["executor.lanes=1"]});
    bed.scheduler("planner", (1, 2), &lanes)?;
    let gateway = bed.gateway().with_context(|| hosts.output())?;
    let result = (|| {
        bed.until(gateway, 2, are(1, "joined"))?;
        let first = bed.there(2)?.remove(0);
        loaded(gateway, &[&hosts.name(&first)?])?;

        let load = Load::default();
        thread::scope(|scope| {
            scope.spawn(|| load.follow(&[gateway], 0));
            let result = (|| {
                load.more(20)?;
                load.none_wrong("while one machine serves")?;
                // Two are there before one has to go.
                bed.cluster.kill("planner")?;
                bed.scheduler("follower", (2, 2), &lanes)?;
                bed.until(gateway, 2, are(2, "joined"))?;
                let both = bed.there(2)?;
                let names = both.iter().map(|id| hosts.name(id)).collect::<Result<Vec<_>>>()?;
                loaded(gateway, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
                load.none_wrong("while another came, its scheduler killed and followed")?;
                hosts.take_back(&first)?;
                bed.until(gateway, 2, |there, open| {
                    are(2, "joined")(there, open) && !there.contains(&first)
                })?;
                load.more(20)?;
                load.none_wrong("while EC2 took one back")
            })();
            load.end();
            result
        })?;
        // It finished what it had and ended by itself; whether the scheduler saw it drain or only end is a matter of milliseconds.
        let said = hosts.output();
        ensure!(said.contains("EC2 takes this machine back") && said.contains("the executor ended with 0"));
        Ok(())
    })();
    result.with_context(|| format!("{}\n{}", bed.cluster.output(), hosts.output()))
}
