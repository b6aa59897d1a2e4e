//! A profile that does not describe its machine: found by live traffic, marked, and measured again once nothing is asked.

use crate::database::Database;
use crate::demo::{Place, ask};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Server, wait};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const VARIANT: &str = "cnn_l-fp32";

/// Has every time in the variant's profile be a quarter of what was measured.
fn falsify(folder: &Path) -> Result<()> {
    let script = r"
import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
rows = db.execute('SELECT p.variant, p.device_class, p.body FROM profiles p JOIN variants v ON v.id = p.variant WHERE v.name = ?', [sys.argv[2]])
for variant, device_class, body in rows.fetchall():
    profile = json.loads(body)
    for point in profile['latency']:
        point['mean_us'] /= 4
        point['var_us2'] /= 16
    db.execute('UPDATE profiles SET body = ? WHERE variant = ? AND device_class = ?', [json.dumps(profile), variant, device_class])
db.commit()
";
    let done = Command::new("python3")
        .args(["-c", script])
        .arg(folder.join("modelless.db"))
        .arg(VARIANT)
        .output()
        .context("starting python3")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

fn shown(server: &Server) -> Result<Value> {
    let page = server.get_json("/v1/tasks/fashion")?;
    let variants = page["variants"].as_array().context("variants")?;
    variants.iter().find(|variant| variant["name"] == VARIANT).cloned().context("the variant")
}

fn alone_ms(variant: &Value) -> Result<f64> {
    variant["profiles"][0]["latency"]["by_batch"][0]["mean_ms"].as_f64().context("a mean")
}

#[test]
fn a_profile_that_is_off_is_found_by_live_traffic_and_measured_again_on_an_idle_node() -> Result<()> {
    let place = Place::new(Database::Sqlite)?;
    falsify(place.folder.path())?;
    let server = place.start(&[])?;
    let before = alone_ms(&shown(&server)?)?;
    ensure!(shown(&server)?["stale"].as_array().is_some_and(Vec::is_empty), "nothing was asked yet");
    let mut connection = server.connect()?;
    let query = ask("boot.png", &format!("?variant={VARIANT}&latency_ms=5000"));
    // Marked after half a minute of this; not measured while it goes on.
    let marked = wait::until(Duration::from_mins(2), || {
        let response = connection.exchange(&query)?;
        ensure!(response.status == 200, "{}", response.text());
        let variant = shown(&server)?;
        Ok(if variant["stale"][0]["slowdown"].is_null() { Err(variant.to_string()) } else { Ok(variant) })
    })?;
    let slowdown = marked["stale"][0]["slowdown"].as_f64().context("by how much")?;
    ensure!(slowdown > 1.5 && marked["stale"][0]["node"] == "local", "{marked}");
    let text = server.command(&["model", "show", "cnn_l", "--task", "fashion", "--server", &server.url()])?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    ensure!(text.contains("times what was measured of it"), "{text}");
    let after = wait::until(Duration::from_mins(2), || {
        let variant = shown(&server)?;
        let over = variant["stale"].as_array().is_some_and(Vec::is_empty);
        Ok(if over { Ok(variant) } else { Err(variant.to_string()) })
    })?;
    ensure!(alone_ms(&after)? > 2.0 * before, "it was measured again: {before} ms, then {after}");
    // With the labelled set of the package, which the server has kept.
    let accuracy = &after["profiles"][0]["accuracy"];
    ensure!(accuracy["samples"] == 2_000 && accuracy["command"] == "modelless up", "{after}");
    let answer = connection.exchange(&query)?;
    ensure!(answer.status == 200, "{}; {after}", answer.text());
    server.stop()
}
