//! Keys before every way in, as the OpenAPI document declares them; tenants that see nothing of each other; a quota that gateways
//! share. All of it at real processes.

use crate::database::{Database, OwnDatabase};
use crate::demo::{Place, ask};
use crate::registering::package;
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::openapi::{Operation, operations};
use modelless_testkit::{Connection, Request, Response, Server, server, wait};
use serde_json::json;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const SCOPES: [&str; 3] = ["query", "register", "admin"];
const PATIENCE: Duration = Duration::from_mins(1);

/// Runs a command, with this key in the environment.
fn run(args: &[&str], key: &str) -> Result<Output> {
    Ok(Command::new(server::binary()?).args(args).env("MODELLESS_KEY", key).output()?)
}

fn done(args: &[&str], key: &str) -> Result<String> {
    let output = run(args, key)?;
    ensure!(output.status.success(), "{args:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Makes a key where the server keeps its things, while it runs or before.
fn made(scopes: &str, place: &[&str]) -> Result<String> {
    let key = done(&[&["key", "create", "a key", "--scopes", scopes][..], place].concat(), "")?;
    ensure!(key.starts_with("mlk_") && key.lines().count() == 1, "only the key: {}", key.len());
    Ok(key)
}

fn send(server: &Server, request: Request, key: &str) -> Result<Response> {
    let request =
        if key.is_empty() { request } else { request.header("authorization", format!("Bearer {key}")) };
    server.send(&request)
}

/// Status and reason, in whichever shape the route tells errors.
fn refusal(answer: &Response) -> (u16, String) {
    let body = answer.json().unwrap_or_default();
    let reason = body["reason"].as_str().or(body["error"]["code"].as_str()).unwrap_or_default();
    (answer.status, reason.to_owned())
}

/// About nothing that is there, so that whoever may do it does no harm.
fn harmless(operation: &Operation) -> Request {
    let parts = operation.path.split('/').map(|part| if part.starts_with('{') { "none" } else { part });
    let request = Request::new(&operation.method, &parts.collect::<Vec<_>>().join("/"));
    if operation.method == "GET" {
        request
    } else {
        request.header("content-type", "application/json").body("{")
    }
}

#[test]
fn a_key_without_the_scope_that_the_document_declares_gets_403_on_every_route() -> Result<()> {
    let place = Place::new(Database::Sqlite)?;
    let data = place.folder.path().to_str().context("a path that is text")?;
    let at_the_store = ["--data", data];
    made("query,register,admin", &at_the_store)?;
    let server = place.start(&[])?;
    // Beside the running server.
    let without = |left_out: &str| {
        let rest: Vec<&str> = SCOPES.into_iter().filter(|scope| *scope != left_out).collect();
        made(&rest.join(","), &at_the_store)
    };
    let only: Vec<String> = SCOPES.iter().map(|scope| made(scope, &at_the_store)).collect::<Result<_>>()?;
    let without: Vec<String> = SCOPES.iter().map(|scope| without(scope)).collect::<Result<_>>()?;
    let tenant = {
        done(&["tenant", "create", "other", "--server", &server.url()], &admin_of(&server, &only[2])?)?;
        made("query,register,admin", &[&at_the_store[..], &["--tenant", "other"]].concat())?
    };
    let last = [&only[..], &without[..], std::slice::from_ref(&tenant)].concat();
    for key in &last {
        known(&server, key)?;
    }

    let document = server.get_json("/openapi.json")?;
    let (mut open, mut locked) = (Vec::new(), 0);
    for operation in operations(&document)? {
        let what = format!("{} {}", operation.method, operation.path);
        let roles = operation.roles.clone().with_context(|| format!("{what} says nothing of keys"))?;
        if roles.is_empty() {
            ensure!(server.send(&harmless(&operation))?.status == 200, "{what}");
            open.push(operation.path);
            continue;
        }
        locked += 1;
        let asked = |key: &str| Ok::<_, anyhow::Error>(refusal(&send(&server, harmless(&operation), key)?));
        let at = SCOPES.iter().position(|scope| roles.contains(*scope));
        let at = at.with_context(|| format!("{what} declares no scope"))?;
        let scope = SCOPES[at];
        ensure!(asked("")? == (401, "no_key".to_owned()), "{what} without a key");
        let stranger = format!("mlk_{}", "0".repeat(64));
        ensure!(asked(&stranger)? == (401, "unknown_key".to_owned()), "{what} with a key of nobody");
        let barred = (403, "missing_scope".to_owned());
        ensure!(asked(&without[at])? == barred, "{what} with all scopes but {scope}");
        let may = asked(&only[at])?;
        ensure!(may.0 != 401 && may.0 != 403, "{what} with the scope {scope} alone: {may:?}");
        let operators = roles.contains("operator");
        ensure!((asked(&tenant)? == barred) == operators, "{what} with all scopes of another tenant");
    }
    open.sort();
    ensure!(open == ["/openapi.json", "/v2/health/live", "/v2/health/ready"], "{open:?}");
    ensure!(locked > 40, "a document of {locked} operations is not all of it");
    let said = server.output();
    for key in &last {
        ensure!(!said.contains(&key[16..]), "the log has a key");
    }
    server.stop()
}

/// The same key, once the server has read that it was made.
fn admin_of(server: &Server, key: &str) -> Result<String> {
    known(server, key)?;
    Ok(key.to_owned())
}

fn known(server: &Server, key: &str) -> Result<()> {
    wait::until(PATIENCE, || {
        let answer = send(server, Request::get("/v1/tasks"), key)?;
        Ok(if answer.status == 401 { Err(answer.to_string()) } else { Ok(()) })
    })
}

#[test]
fn a_tenant_sees_nothing_of_another_and_is_answered_by_what_is_shared_with_it() -> Result<()> {
    let place = Place::new(Database::Sqlite)?;
    let data = place.folder.path().to_str().context("a path that is text")?;
    let server = place.start(&[])?;
    ensure!(server.send(&ask("boot.png", ""))?.status == 200, "a demo on loopback asks nobody for a key");
    let admin = made("query,register,admin", &["--data", data])?;
    wait::until(PATIENCE, || {
        let answer = server.send(&ask("boot.png", ""))?;
        Ok(if answer.status == 401 { Ok(()) } else { Err(answer.to_string()) })
    })?;
    let url = server.url();
    let at = ["--server", url.as_str()];
    let of = |args: &[&str], key: &str| done(&[args, &at[..]].concat(), key);
    let refused = run(&[&["task", "list"][..], &at].concat(), "")?;
    ensure!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("no_key"),
        "{refused:?}"
    );
    let file = place.folder.path().join("key");
    fs::write(&file, &admin)?;
    let file = file.to_str().context("a path that is text")?;
    ensure!(of(&["task", "list", "--key-file", file], "")?.contains("fashion"));
    of(&["tenant", "create", "other"], &admin)?;
    let other =
        of(&["key", "create", "boss", "--tenant", "other", "--scopes", "query,register,admin"], &admin)?;
    let send = |request: Request| send(&server, request, &other);

    let document = server.get_json("/openapi.json")?;
    for operation in operations(&document)?.iter().filter(|operation| operation.method == "GET") {
        let filled =
            [("{task}", "fashion"), ("{model}", "cnn_m"), ("{variant}", "cnn_m-fp32"), ("{version}", "1")];
        let path =
            filled.iter().fold(operation.path.clone(), |path, (name, value)| path.replace(name, value));
        let answer = send(Request::get(&path))?;
        let tells = answer.status == 200 && operation.path != "/openapi.json";
        let text = answer.text();
        ensure!(!tells || !(text.contains("cnn_m") || text.contains("fashion")), "GET {path}: {text}");
    }
    for (method, path) in [
        ("DELETE", "/v1/models/fashion/cnn_m"),
        ("DELETE", "/v1/tasks/fashion"),
        ("POST", "/v1/tasks/fashion/explain"),
    ] {
        ensure!(send(Request::new(method, path))?.status == 404, "{method} {path}");
    }
    ensure!(refusal(&send(ask("boot.png", ""))?) == (404, "unknown_task".to_owned()));
    ensure!(refusal(&send(Request::get("/metrics"))?) == (403, "missing_scope".to_owned()));

    of(&["model", "share", "cnn_s", "--task", "fashion", "--with", "other"], &admin)?;
    let answer = send(ask("boot.png", ""))?;
    ensure!((answer.status, answer.header("modelless-model")) == (200, Some("cnn_s")), "{answer}");
    ensure!(send(ask("boot.png", "?model=cnn_m"))?.status == 422, "not shared");
    let explained = send(Request::post("/v1/tasks/fashion/explain").json(&json!({})))?.text();
    ensure!(explained.contains("cnn_s") && !explained.contains("cnn_m"), "{explained}");
    of(&["model", "share", "cnn_s", "--task", "fashion", "--private"], &admin)?;
    ensure!(send(ask("boot.png", ""))?.status == 404, "not shared any more");

    // Written just after the answers, in their order.
    let all = wait::until(PATIENCE, || {
        let all = of(&["audit"], &admin)?;
        let both = all.matches("PATCH /v1/models/fashion/cnn_s").count() == 2;
        Ok(if both { Ok(all) } else { Err(all) })
    })?;
    let own = of(&["audit"], &other)?;
    ensure!(all.contains("DELETE /v1/tasks/fashion"), "the operator sees everything: {all}");
    ensure!(own.contains("DELETE /v1/tasks/fashion") && !own.contains("PATCH"), "{own}");
    let prefix = &other[..12];
    of(&["key", "revoke", prefix], &admin)?;
    ensure!(refusal(&send(ask("boot.png", ""))?) == (401, "revoked_key".to_owned()));
    let said = format!("{}{own}{all}", server.output());
    ensure!(!said.contains(&admin[16..]) && !said.contains(&other[16..]), "a secret was told");
    server.stop()
}

fn question(key: &str) -> Request {
    ask("boot.png", "?latency_ms=20000").header("api-key", key)
}

/// Asks both gateways in turn for so long, and gives how often that was answered and refused.
#[expect(clippy::disallowed_methods, reason = "a quota is about real time")]
fn flood(gateways: &[SocketAddr; 2], key: &str, time: Duration) -> Result<(u64, u64, Duration)> {
    let request = question(key);
    let mut open = [Connection::open(gateways[0])?, Connection::open(gateways[1])?];
    let (mut answered, mut refused, began) = (0, 0, Instant::now());
    while began.elapsed() < time {
        for connection in &mut open {
            let answer = connection.exchange(&request)?;
            match (answer.status, refusal(&answer).1.as_str()) {
                (200, _) => answered += 1,
                (429, "over_quota") => refused += 1,
                _ => anyhow::bail!("{answer}"),
            }
        }
    }
    Ok((answered, refused, began.elapsed()))
}

#[test]
fn two_gateways_grant_one_quota_together() -> Result<()> {
    let database = OwnDatabase::create(&format!("quota_{}", std::process::id()), None)?;
    let folder = modelless_testkit::temp_dir("quota")?;
    let package = folder.path().join("package");
    self::package(&package)?;
    let mut cluster = Cluster::new(&database.url()?, &folder.path().join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1"])?;
    let gateways = [cluster.gateway("left", &[])?, cluster.gateway("right", &[])?];
    for gateway in ["left", "right"] {
        cluster.wait_for(gateway, "name=\"one\"", PATIENCE)?;
    }
    cluster.scheduler("planner", &[])?;
    let url = format!("http://{}", gateways[0]);
    let key = made("query,register,admin", &["--database", &database.url()?])?;
    let known = |gateway: SocketAddr, path: &str| {
        let request = Request::get(path).header("api-key", &key);
        wait::until(PATIENCE, || {
            let answer = Connection::open(gateway)?.exchange(&request)?;
            Ok(if answer.status == 200 { Ok(()) } else { Err(answer.to_string()) })
        })
    };
    known(gateways[0], "/v1/tasks")?;
    register(&package, &url, &key)?;
    known(gateways[1], "/v1/tasks/fashion")?;
    let limit = ["tenant", "limit", "default", "--requests-per-s", "20", "--burst", "4", "--server", &url];
    done(&limit, &key)?;
    // Until each says that it grants half, and that all of that is out.
    for gateway in gateways {
        let mut open = Connection::open(gateway)?;
        wait::until(PATIENCE, || {
            let answer = open.exchange(&question(&key))?;
            let half = answer.status == 429 && answer.text().contains("shared by 2 gateways");
            Ok(if half { Ok(()) } else { Err(answer.to_string()) })
        })?;
    }
    let (answered, refused, took) = flood(&gateways, &key, Duration::from_secs(3))?;
    // 20 a second, 4 at once, and one more for each gateway.
    let most = 20.0 * took.as_secs_f64() + 4.0 + 2.0;
    let answered = f64::from(u32::try_from(answered)?);
    ensure!(answered <= most, "{answered} were answered in {took:?}; the quota is {most}");
    ensure!(answered >= most / 3.0 && refused > 0, "{answered} answered of {most}, {refused} refused");
    Ok(())
}

fn register(package: &Path, url: &str, key: &str) -> Result<()> {
    let package = package.to_str().context("a path that is text")?;
    done(&["model", "register", package, "--server", url], key).map(drop)
}
