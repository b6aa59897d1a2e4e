//! `scoreboard [--short] [--ablate] [--out DIR] [--seeds N] [--seconds N] [--loads A,B,..] [--policies A,B,.. [--instead]] [--announce N] SCENARIO.toml...`, `scoreboard --bounds --out DIR SCENARIO.toml...`, `scoreboard --published DIR [--out DIR]`
//! and `scoreboard --tune DIR`. With `--starts A,B,..` there is a board for each: loads of models and starts of machines that take so many times as long.
//!
//! `cargo xtask scoreboard` starts it with the published scenarios, with what papers claim, or with the grid of the search.

use modelless_simulator::published::{self, CLAIMS};
use modelless_simulator::scoreboard::{Plan, Row, beside, board, bounds_anew, instead, markdown, picture};
use modelless_simulator::starts::Starting;
use modelless_simulator::{ablation, starts, tuning};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

struct Options {
    plan: Plan,
    out: Option<PathBuf>,
    scenarios: Vec<PathBuf>,
    /// Where the worlds lie that papers' claims are looked for in; then nothing else is run.
    published: Option<PathBuf>,
    /// Whether the rows of single policies take the place of those that are there.
    instead: bool,
    /// Whether only the bounds of the rows that are there are worked out anew.
    bounds: bool,
    /// Whether each of our ideas is switched off in turn instead.
    ablate: bool,
    /// How many times as long loads and starts take, in turn, if they are looked at.
    starts: Vec<f64>,
    /// Where the grid lies; then it is searched, and what is chosen is written beside it.
    tune: Option<PathBuf>,
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let full = Plan {
        loads: vec![0.3, 0.6, 0.9, 1.2, 1.5],
        seeds: (1..=5).collect(),
        seconds: 30,
        starts: 1.0,
        announce: None,
        policies: Vec::new(),
        before: None,
    };
    let mut options = Options {
        plan: full,
        out: None,
        scenarios: Vec::new(),
        published: None,
        instead: false,
        bounds: false,
        ablate: false,
        starts: Vec::new(),
        tune: None,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        match arg.as_str() {
            "--short" => {
                let (loads, seeds) = (vec![0.9], vec![1, 2]);
                options.plan = Plan { loads, seeds, seconds: 3, policies: Vec::new(), ..options.plan };
            }
            "--policies" => options.plan.policies = value()?.split(',').map(str::to_owned).collect(),
            "--announce" => {
                let nodes = value()?;
                let nodes = nodes.parse().map_err(|_| format!("{nodes:?} is no number of nodes"))?;
                options.plan.announce = Some(nodes);
            }
            "--out" => options.out = Some(PathBuf::from(value()?)),
            "--instead" => options.instead = true,
            "--bounds" => options.bounds = true,
            "--ablate" => options.ablate = true,
            "--published" => options.published = Some(PathBuf::from(value()?)),
            "--tune" => options.tune = Some(PathBuf::from(value()?)),
            "--seeds" => options.plan.seeds = (1..=number(value()?)?).collect(),
            "--seconds" => options.plan.seconds = number(value()?)?,
            "--loads" => options.plan.loads = numbers(&value()?)?,
            "--starts" => options.starts = numbers(&value()?)?,
            unknown if unknown.starts_with("--") => return Err(format!("there is no option {unknown}")),
            scenario => options.scenarios.push(PathBuf::from(scenario)),
        }
    }
    let other = options.published.is_some() || options.tune.is_some();
    if options.scenarios.is_empty() && !other { Err("name the scenarios".into()) } else { Ok(options) }
}

/// Several of them, none below nothing.
fn numbers(text: &str) -> Result<Vec<f64>, String> {
    let number = |text: &str| text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
    text.split(',').map(|text| number(text).ok_or_else(|| format!("{text:?} is no such number"))).collect()
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| all(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all(options: &Options) -> Result<(), String> {
    if let Some(folder) = &options.published {
        return claims(folder, options.out.as_deref());
    }
    if let Some(folder) = &options.tune {
        return tune(folder);
    }
    let files: Vec<&Path> = options.scenarios.iter().map(PathBuf::as_path).collect();
    if options.ablate && !options.starts.is_empty() {
        return Err("--ablate and --starts are two runs".into());
    }
    if options.ablate {
        return ideas(&files, &options.plan, options.out.as_deref());
    }
    if options.bounds {
        let folder = options.out.as_ref().ok_or("--bounds needs the folder of a board: --out")?;
        if options.ablate
            || options.instead
            || !options.starts.is_empty()
            || !options.plan.policies.is_empty()
        {
            return Err("--bounds runs nobody: it stands without other options".into());
        }
        if !folder.join("rows.json").exists() {
            return Err(format!("there is no board in {}: run one first", folder.display()));
        }
        let mut rows = known(&folder.join("rows.json"))?;
        bounds_anew(&files, &mut rows, |done| eprintln!("{done}")).map_err(|error| error.to_string())?;
        return keep(folder, &rows);
    }
    if !options.starts.is_empty() {
        return times(&files, options);
    }
    // Some policies alone are no board, but may be told anew beside the others.
    let whole = options.plan.policies.is_empty();
    let folder = options.out.as_ref().filter(|_| whole || options.instead);
    let before = folder.map_or_else(|| Ok(Vec::new()), |folder| known(&folder.join("rows.json")))?;
    let plan = Plan { before: (folder.is_some() && !whole).then(|| before.clone()), ..options.plan.clone() };
    let rows = board(&files, &plan, |row| {
        let violations = 100.0 * row.violations.mean;
        let accuracy = row.accuracy.mean;
        eprintln!(
            "{} {:.2} {}: {violations:.2} % violated, accuracy {accuracy:.4}",
            row.scenario, row.load, row.policy
        );
    });
    let rows = rows.map_err(|error| error.to_string())?;
    let Some(folder) = folder else {
        return std::io::stdout()
            .write_all(markdown(&rows, HOW).as_bytes())
            .map_err(|error| error.to_string());
    };
    let rows = if whole { beside(before, rows) } else { instead(before, rows).map_err(|e| e.to_string())? };
    keep(folder, &rows)
}

/// What makes a board.
const HOW: &str = "cargo xtask scoreboard";

/// Writes a board with its pictures.
fn keep(folder: &Path, rows: &[Row]) -> Result<(), String> {
    let mut files = vec![("README.md".to_owned(), markdown(rows, HOW))];
    files.push(("rows.json".into(), serde_json::to_string_pretty(rows).map_err(|e| e.to_string())? + "\n"));
    let mut names: Vec<&str> = rows.iter().map(|row| row.scenario.as_str()).collect();
    names.dedup();
    files.extend(names.iter().map(|name| (format!("{name}.svg"), picture(rows, name))));
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    for (name, text) in files {
        write(&folder.join(name), &text)?;
    }
    Ok(())
}

/// What an earlier run wrote there.
fn known(path: &Path) -> Result<Vec<Row>, String> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("{}: {error}; delete it to begin anew", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// What each of our ideas is worth; written after each scenario, since the whole takes long.
fn ideas(files: &[&Path], plan: &Plan, out: Option<&Path>) -> Result<(), String> {
    let mut all = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let here = ablation::ablate(&[*file], &plan.loads, &plan.seeds, plan.seconds, |one| {
            let violations = 100.0 * one.violations;
            eprintln!("{} {:.2} without {}: {violations:.2} % violated", one.scenario, one.load, one.idea);
        });
        all.extend(here.map_err(|error| error.to_string())?);
        let whole = at + 1 == files.len();
        if out.is_some() || whole {
            let text = ablation::markdown(&all, plan.seeds.len(), plan.seconds);
            let raw = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())? + "\n";
            told(out, "ablation", whole, &text, &raw)?;
        }
    }
    Ok(())
}

/// A board for each of several factors of load times and start-ups. It takes long, so what there is is written after each scenario.
fn times(files: &[&Path], options: &Options) -> Result<(), String> {
    let mut all: Vec<Starting> = Vec::new();
    for factor in &options.starts {
        all.push(Starting { times: *factor, rows: Vec::new() });
        for (at, file) in files.iter().enumerate() {
            let mut here = starts::starts(&[*file], &options.plan, &[*factor], |times, row| {
                let violations = 100.0 * row.violations.mean;
                eprintln!(
                    "x {times} {} {:.2} {}: {violations:.2} % violated",
                    row.scenario, row.load, row.policy
                );
            })
            .map_err(|error| error.to_string())?;
            if let (Some(board), Some(one)) = (all.last_mut(), here.pop()) {
                board.rows.extend(one.rows);
            }
            let whole = at + 1 == files.len() && all.len() == options.starts.len();
            if whole || options.out.is_some() {
                let raw = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())? + "\n";
                let text = starts::markdown(&all, "cargo xtask scoreboard --starts");
                told(options.out.as_deref(), "starts", whole, &text, &raw)?;
            }
        }
    }
    Ok(())
}

/// Writes a text and what it was made of, or tells the text where there is no folder. What is not whole yet has a name of its own: it replaces nothing.
fn told(folder: Option<&Path>, name: &str, whole: bool, text: &str, raw: &str) -> Result<(), String> {
    let Some(folder) = folder else {
        return std::io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string());
    };
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let so_far = |end: &str| folder.join(format!("{name}.so-far.{end}"));
    for (end, text) in [("json", raw), ("md", text)] {
        if whole {
            write(&folder.join(format!("{name}.{end}")), text)?;
            let _ = fs::remove_file(so_far(end)); // there is none where one scenario was all
        } else {
            write(&so_far(end), text)?;
        }
    }
    Ok(())
}

/// What papers claim, and what is seen.
fn claims(worlds: &Path, out: Option<&Path>) -> Result<(), String> {
    let mut found = Vec::new();
    for claim in CLAIMS {
        let seen = claim.look(worlds, 1).map_err(|error| error.to_string())?;
        eprintln!(
            "{}: {:.2} published, {:.2} seen: {}",
            seen.policy, seen.published, seen.seen, seen.verdict
        );
        found.push(seen);
    }
    let raw = serde_json::to_string_pretty(&found).map_err(|e| e.to_string())? + "\n";
    told(out, "published", true, &published::markdown(&found), &raw)
}

/// The search of everybody's parameters.
fn tune(folder: &Path) -> Result<(), String> {
    let path = folder.join("grid.toml");
    let text =
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let grid = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let tried = tuning::search(&grid, &folder.join("../scenarios"), |one| {
        let chosen = if one.chosen { ", chosen" } else { "" };
        let (violations, usd) = (100.0 * one.violations, one.usd_per_million);
        eprintln!(
            "{} {:?}: {violations:.2} % violated, {usd:.2} USD a million{chosen}",
            one.policy, one.given
        );
    });
    let tried = tried.map_err(|error| error.to_string())?;
    write(&folder.join("chosen.toml"), &tuning::file(&tried))?;
    write(&folder.join("tried.md"), &tuning::markdown(&tried, &grid))
}
