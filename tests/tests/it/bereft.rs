//! What goes on without a part of the cluster, and with more of a part than one: nodes without a scheduler, two schedulers,
//! a scheduler whose query nobody will answer, clients whose other gateway is dead, and everybody with a Redis that is silent.

use crate::cluster::{Load, loaded};
use crate::database::{Database, Locked};
use crate::demo::Place;
use crate::half_dead::behind_a_wire;
use anyhow::{Context, Result};
use modelless_testkit::cluster::Cluster;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(1);
const ONE_LANE: &[&str] = &["executor.lanes=1"];
/// Often, so that something happens before anybody looks.
const OFTEN: &[&str] = &["scheduler.interval_ms=100"];

#[test]
fn nodes_get_their_models_from_the_other_scheduler_and_from_the_last_plan_where_there_is_none() -> Result<()>
{
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", ONE_LANE)?;
    cluster.scheduler("planner", OFTEN)?;
    cluster.scheduler("second", OFTEN)?;
    let gateway = cluster.gateway("left", &[])?;
    loaded(gateway, &["one"]).with_context(|| cluster.output())?;
    cluster.kill("planner")?;
    cluster.executor("two", ONE_LANE)?;
    cluster.wait_for("second", "new plan", PATIENCE)?;
    loaded(gateway, &["one", "two"]).with_context(|| cluster.output())?;

    cluster.kill("second")?;
    cluster.kill("two")?;
    cluster.wait_for("left", "a node is gone", PATIENCE)?;
    cluster.start_again("two")?;
    // Nobody asks anything, so nothing is loaded but by the plan that is in the database.
    loaded(gateway, &["two"]).with_context(|| cluster.output())
}

#[test]
fn a_scheduler_whose_query_is_never_answered_says_so_and_plans_on() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let (wire, url) = behind_a_wire(&database)?;
    let mut cluster = Cluster::new(&url, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", ONE_LANE)?;
    cluster.scheduler("planner", OFTEN)?;
    let gateway = cluster.gateway("left", &[])?;
    loaded(gateway, &["one"]).with_context(|| cluster.output())?;
    // The wire falls silent while its query is under way.
    let locked = Locked::table(&database, "plans")?;
    locked.wait_for_somebody()?;
    wire.strand();
    drop(locked);
    cluster.wait_for("planner", "the store did not answer within", PATIENCE)?;
    cluster.executor("two", ONE_LANE)?;
    loaded(gateway, &["two"]).with_context(|| cluster.output())
}

#[test]
fn no_query_goes_wrong_at_one_gateway_while_the_other_is_killed_or_stopped_or_redis_is_silent() -> Result<()>
{
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", ONE_LANE)?;
    cluster.executor("two", ONE_LANE)?;
    cluster.scheduler("planner", &[])?;
    let gateways = [cluster.gateway("left", &[])?, cluster.gateway("right", &[])?];
    for gateway in gateways {
        loaded(gateway, &["one", "two"]).with_context(|| cluster.output())?;
    }
    // Those of the other gateway hold credits of the nodes when it dies.
    let (load, others) = (Load::default(), Load::default());
    let result = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| load.follow(&gateways[..1], 0));
            scope.spawn(|| others.follow(&gateways[1..], 0));
        }
        let result = without(&mut cluster, gateways[1], &load, &others);
        load.end();
        others.end();
        result
    });
    result.with_context(|| cluster.output())
}

fn without(cluster: &mut Cluster, right: SocketAddr, load: &Load, others: &Load) -> Result<()> {
    others.more(100)?;
    cluster.kill("right")?;
    load.more(300)?;
    load.none_wrong("after the other gateway was killed")?;
    cluster.start_again("right")?;
    loaded(right, &["one", "two"])?;
    others.more(100)?;
    // Longer than it takes to be called lost.
    cluster.freeze("right")?;
    cluster.wait_for("one", "nothing was heard for", PATIENCE)?;
    load.more(300)?;
    load.none_wrong("after the other gateway was stopped")?;
    cluster.thaw("right")?;
    others.more(100)?;
    cluster.redis.freeze()?;
    load.more(500)?;
    cluster.redis.thaw()?;
    load.more(100)?;
    load.none_wrong("while Redis was silent")
}
