//! A cluster whose connections are encrypted: real processes, with certificates of an authority made here.

use crate::database::Database;
use crate::demo::{Place, picture};
use anyhow::{Context, Result};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, certificates, wait};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn an_encrypted_cluster_answers_and_tells_one_without_a_certificate_why_it_is_not_let_in() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let folder = place.folder.path();
    certificates::write(
        folder,
        &["127.0.0.1", "modelless-gateway-left", "modelless-scheduler", "a-printer"],
    )?;
    let file = |setting: &str, name: &str| format!("tls.{setting}={}", folder.join(name).display());
    let believes = file("ca", "ca.pem");
    let (node, node_key) = (file("cert", "127.0.0.1.pem"), file("key", "127.0.0.1.key"));
    let shows = |name: &str| (file("cert", &format!("{name}.pem")), file("key", &format!("{name}.key")));
    let (client, client_key) = shows("modelless-gateway-left");
    let (planner, planner_key) = shows("modelless-scheduler");
    let (printer, printer_key) = shows("a-printer");

    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &folder.join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1", &node, &node_key, &believes])?;
    cluster.scheduler("planner", &[&planner, &planner_key, &believes])?;
    let gateway = cluster.gateway("left", &[&client, &client_key, &believes])?;
    wait::until(PATIENCE, || {
        let request = Request::post("/v1/tasks/fashion?latency_ms=3000")
            .header("content-type", "image/png")
            .body(picture("boot.png"));
        let answer = Connection::open(gateway)?.exchange(&request)?;
        Ok(if answer.status == 200 { Ok(()) } else { Err(answer.to_string()) })
    })?;

    cluster.scheduler("nameless", &[&believes])?;
    cluster.wait_for("nameless", "wants a certificate from this one; set tls.cert and tls.key", PATIENCE)?;
    cluster.wait_for("one", "shows no certificate", PATIENCE)?;
    cluster.scheduler("printer", &[&printer, &printer_key, &believes])?;
    cluster.wait_for(
        "printer",
        "its certificate is for a-printer, and a scheduler needs one for",
        PATIENCE,
    )?;
    Ok(())
}
