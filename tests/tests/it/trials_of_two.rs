//! A version on trial behind two gateways: each draws of its own queries, what both saw is judged together, verdicts count wherever they are
//! given, and copies are answered without anybody getting their answers.

use crate::cluster::loaded;
use crate::database::Database;
use crate::demo::Place;
use crate::trials::{HIGH, LOW, is_drawn, make_task, question, register};
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, Response, onnx, wait};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(2);
/// Far more than a verdict on verdicts takes.
const QUERIES: usize = 5_000;

fn get(gateway: SocketAddr, path: &str) -> Result<Value> {
    let answer = Connection::open(gateway)?.exchange(&Request::get(path))?;
    ensure!(answer.status == 200, "{path}: {answer}");
    answer.json()
}

fn try_it(gateway: SocketAddr, more: &Value) -> Result<Value> {
    let mut body = json!({"model": "n", "version": 2, "share": 0.5});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    // Until nodes have measured it, it is refused.
    wait::until(PATIENCE, || {
        let begin = Request::post("/v1/tasks/numbers/trial").json(&body);
        let begun = Connection::open(gateway)?.exchange(&begin)?;
        let there = begun.status == 201;
        Ok(if there { Ok(begun.json()?["trial"].clone()) } else { Err(begun.to_string()) })
    })
}

fn trial(gateway: SocketAddr) -> Result<Value> {
    Ok(get(gateway, "/v1/tasks/numbers/trial")?["trial"].clone())
}

/// Until both gateways hold that the task is served, and by this trial.
fn follows(gateways: &[SocketAddr], trial: &Value) -> Result<()> {
    for gateway in gateways {
        wait::until(PATIENCE, || {
            let seen = get(*gateway, "/v1/tasks/numbers/trial")?;
            let there = seen["trial"]["id"] == trial["id"] && seen["trial"]["state"] == "running";
            Ok(if there { Ok(()) } else { Err(seen.to_string()) })
        })?;
    }
    Ok(())
}

/// Says at a gateway whether an answer was right.
fn judge(gateway: &mut Connection, answer: &Response, right: bool) -> Result<()> {
    let id = answer.header("modelless-query-id").context("an answer has an id")?;
    let verdict = json!({"verdict": if right { "correct" } else { "wrong" }});
    let taken = gateway.exchange(&Request::post(&format!("/v1/queries/{id}/feedback")).json(&verdict))?;
    ensure!(taken.status == 200, "{taken}");
    Ok(())
}

/// What a gateway counted of the version on trial, as Prometheus is told.
fn counted(gateway: SocketAddr) -> Result<u64> {
    let text = Connection::open(gateway)?.exchange(&Request::get("/metrics"))?.text();
    let of_candidate = |line: &&str| {
        line.starts_with("modelless_trial_queries_total{task=\"numbers\"")
            && line.contains("arm=\"candidate\"")
    };
    text.lines()
        .filter(of_candidate)
        .map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<u64>().context(line.to_owned()))
        .sum()
}

#[test]
fn what_two_gateways_see_of_a_version_is_judged_together_and_verdicts_count_at_either() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1"])?;
    cluster.scheduler("planner", &[])?;
    let often = "gateway.trial_beat_ms=50";
    let gateways = [cluster.gateway("left", &[often])?, cluster.gateway("right", &[often])?];
    for gateway in gateways {
        loaded(gateway, &["one"]).with_context(|| cluster.output())?;
    }
    let done = both(gateways);
    done.with_context(|| cluster.output())
}

fn both(gateways: [SocketAddr; 2]) -> Result<()> {
    let mut doors = [Connection::open(gateways[0])?, Connection::open(gateways[1])?];
    make_task(&mut doors[0])?;
    let width = u64::try_from(crate::trials::WIDTH)?;
    register(&mut doors[0], 1, &onnx::identity(width), HIGH)?;
    register(&mut doors[0], 2, &onnx::unary("Abs", width, 13), LOW)?;
    // Measured, and known to both.
    for gateway in gateways {
        wait::until(PATIENCE, || {
            let answer = Connection::open(gateway)?.exchange(&question("?latency_ms=5000"))?;
            Ok(if answer.status == 200 { Ok(()) } else { Err(answer.to_string()) })
        })?;
    }

    // Wrong, as whoever asks finds out: each tells the other gateway.
    let begun = try_it(gateways[0], &json!({"for_ms": 3_600_000}))?;
    follows(&gateways, &begun)?;
    let (mut drawn, mut seen) = ([0_u64; 2], [0_u64; 2]);
    let (mut ended, mut first) = (None, None);
    for n in 0..QUERIES {
        let here = n % 2;
        let answer = doors[here].exchange(&question("?latency_ms=5000"))?;
        ensure!(answer.status == 200, "{answer}");
        let of_trial = is_drawn(&answer);
        drawn[here] += u64::from(of_trial);
        first = first.or_else(|| answer.header("modelless-trial").map(ToOwned::to_owned));
        judge(&mut doors[1 - here], &answer, !of_trial)?;
        if n % 20 == 0 {
            for (seen, gateway) in seen.iter_mut().zip(gateways) {
                *seen = (*seen).max(counted(gateway)?);
            }
            let now = trial(gateways[0])?;
            if now["state"] != "running" {
                ended = Some(now);
                break;
            }
        }
    }
    let ended = ended.with_context(|| format!("{QUERIES} verdicts were not enough; {drawn:?} were drawn"))?;
    ensure!(ended["state"] == "rolled_back" && ended["verdict"]["what"] == "accuracy", "{ended}");
    ensure!(drawn.iter().all(|drawn| *drawn > 0) && seen.iter().all(|seen| *seen > 0), "{drawn:?} {seen:?}");
    // What was judged is what gateways had told by then.
    ensure!(ended["candidate"]["answered"].as_u64() > Some(0), "{ended}");
    let arms = ["candidate", "other"].map(|arm| (ended[arm]["right"].as_u64(), ended[arm]["wrong"].as_u64()));
    ensure!(arms[0].0 == Some(0) && arms[1].1 == Some(0), "{ended}");

    // Copies: everybody gets the default's answers, and those of the copies are compared.
    let begun = try_it(gateways[1], &json!({"shadow": true, "for_ms": 3_600_000}))?;
    follows(&gateways, &begun)?;
    let mut last = Value::Null;
    // Of tensors the largest number counts: the second of these as they are, and the first of their amounts.
    let mut x = [0.0_f32; crate::trials::WIDTH];
    (x[0], x[1]) = (-3.0, 1.0);
    let unlike =
        Request::post("/v1/tasks/numbers?latency_ms=5000").json(&json!({"inputs": {"x": x.to_vec()}}));
    for n in 0..QUERIES {
        let answer = doors[n % 2].exchange(&unlike)?;
        // One may not have heard yet that the first one ended; nobody is answered by the second.
        let of_second = is_drawn(&answer) && answer.header("modelless-trial") != first.as_deref();
        ensure!(answer.status == 200 && !of_second, "{answer}");
        if n % 20 == 0 {
            last = trial(gateways[0])?;
            if last["differed"].as_u64() >= Some(20) {
                break;
            }
        }
    }
    ensure!(last["differed"].as_u64() >= Some(20), "copies were not compared: {last}");
    ensure!(last["agreed"] == 0 && last["shadow"] == true, "each finds another one the largest: {last}");
    let stop = Request::new("DELETE", "/v1/tasks/numbers/trial");
    let stopped = doors[0].exchange(&stop)?;
    ensure!(stopped.status == 200 && stopped.json()?["trial"]["state"] == "stopped", "{stopped}");
    Ok(())
}
