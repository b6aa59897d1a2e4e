//! A profile that was taken in a bad minute: told as such, and measured again in another one, while nothing is asked.

use crate::database::Database;
use crate::demo::Place;
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Server, wait};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const VARIANT: &str = "cnn_l-fp32";

/// Has the variant's profile be one of a bad minute: ten times as slow, and marked. Those of the others are of good ones.
fn falsify(folder: &Path) -> Result<()> {
    let script = r"
import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
rows = db.execute('SELECT p.variant, p.device_class, p.body, v.name FROM profiles p JOIN variants v ON v.id = p.variant')
for variant, device_class, body, name in rows.fetchall():
    profile = json.loads(body)
    profile['detail'].pop('unsteady', None)
    if name == sys.argv[2]:
        profile['detail']['unsteady'] = {'sizes': 0.0, 'same_work': 5.0, 'stolen': 0.0, 'tries': 1, 'left': 1}
        for point in profile['latency']:
            point['mean_us'] *= 10
            point['p99_us'] *= 10
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

fn profile(server: &Server) -> Result<Value> {
    let page = server.get_json("/v1/variants?task=fashion")?;
    let all = page["variants"].as_array().context("variants")?;
    let variant = all.iter().find(|variant| variant["name"] == VARIANT).context("the variant")?;
    Ok(variant["profiles"][0].clone())
}

fn alone_ms(profile: &Value) -> Result<f64> {
    profile["latency"]["by_batch"][0]["mean_ms"].as_f64().context("a mean")
}

#[test]
fn what_was_measured_in_a_bad_minute_is_told_kept_by_exports_and_measured_again_by_itself() -> Result<()> {
    let place = Place::new(Database::Sqlite)?;
    falsify(place.folder.path())?;
    let server = place.start(&[])?;
    let before = profile(&server)?;
    let why = before["unsteady"]["why"].as_str().context("why")?;
    ensure!(why.contains("took 500 % longer") && why.contains("measured again"), "{why}");
    let url = server.url();
    for command in [
        &["variant", "show", VARIANT, "--task", "fashion"][..],
        &["profile", "show", "fashion"],
        &["profile", "show", VARIANT],
    ] {
        let said = server.command(&[command, &["--server", &url]].concat())?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        ensure!(
            said.contains("measured in an unsteady minute: work that is always the same"),
            "{command:?}: {said}"
        );
    }
    let listed = server.command(&["variant", "list", "fashion", "--server", &url])?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(listed.matches("\nunsteady: measured while").count() == 1, "once, for all of them: {listed}");
    let file = place.folder.path().join("exported.csv");
    let path = file.to_str().context("a path")?;
    let (export, import) = (["profile", "export", "--out", path], ["profile", "import", path, "--replace"]);
    for command in [&export[..], &import[..]] {
        let done = server.command(&[command, &["--server", &url]].concat())?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    ensure!(profile(&server)?["unsteady"]["same_work"] == 5.0, "it came back with its mark");
    // Not in the same minute, and then once nothing was asked for a while.
    let after = wait::until(Duration::from_mins(3), || {
        let now = profile(&server)?;
        let again = now["unsteady"].is_null() || now["unsteady"]["tries"] != 1;
        Ok(if again { Ok(now) } else { Err(now.to_string()) })
    })?;
    ensure!(
        alone_ms(&after)? < 0.7 * alone_ms(&before)?,
        "the steadier one stands: {before} and then {after}"
    );
    ensure!(after["unsteady"].is_null() || after["unsteady"]["left"] == 0, "not for ever: {after}");
    server.stop()
}
