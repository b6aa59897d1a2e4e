//! `speed SCENARIO.toml [SECONDS]`: how many queries a second of wall time the simulator plays on one core, as JSON on standard output.

use modelless_simulator::scenario::file::File;
use modelless_simulator::{Scenario, run};
use modelless_types::Micros;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    match measured() {
        Ok(text) if writeln!(std::io::stdout(), "{text}").is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures a real process")]
fn measured() -> Result<serde_json::Value, String> {
    let mut args = std::env::args().skip(1);
    let scenario = args.next().ok_or("name a scenario")?;
    let seconds = args.next().map(|text| text.parse().map_err(|_| format!("{text:?} is no number")));
    let world = File::load(Path::new(&scenario), 1.0).map_err(|error| error.to_string())?;
    let duration = seconds.transpose()?.map_or(world.duration, Micros::from_secs);
    let world = Scenario { duration, ..world };
    let began = Instant::now();
    let outcome = run(&world, 1).map_err(|error| error.to_string())?;
    let wall_s = began.elapsed().as_secs_f64();
    let queries = f64::from(u32::try_from(outcome.total.offered).unwrap_or(u32::MAX));
    Ok(serde_json::json!({
        "scenario": world.name,
        "nodes": world.nodes.len(),
        "queries": outcome.total.offered,
        "events": outcome.events,
        "violations": outcome.total.violations,
        "wall_s": wall_s,
        "queries_per_second": queries / wall_s.max(1e-9),
    }))
}
