//! A task whose variants go from cheap to accurate, and what is asked of it: for measures of the choice among them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::Server;
use serde_json::Value;

use super::Context;

/// Floors, as parts of the way from the least accurate variant to the most accurate one.
const FLOORS: [f64; 2] = [0.2, 0.6];
/// Bounds, as multiples of the 99th percentile of the most accurate variant alone.
const BOUNDS: [f64; 2] = [4.0, 12.0];

/// A task with variants from cheap to accurate, and pictures to ask.
pub(crate) struct Ladder {
    pub(crate) task: &'static str,
    pub(crate) package: PathBuf,
    pub(crate) pictures: Vec<PathBuf>,
}

impl Ladder {
    /// The ImageNet demo's, made once and kept. The short form downloads nothing and takes the small pictures that come with the program.
    pub(crate) fn of(context: &Context) -> Result<Self> {
        let (task, package, pictures) = if context.short {
            let package = context.root.join("examples/fashion");
            ("fashion", package.clone(), package.join("pictures"))
        } else {
            let data = crate::measure::models::cache()?.join("imagenet-demo");
            let package = data.join("demo/imagenet/made");
            if !package.join("task.toml").is_file() {
                crate::say("making the ImageNet demo (once)");
                let server =
                    Server::builder().binary(context.binary()?).data(&data).arg("--demo").arg("imagenet");
                server.ready_within(Duration::from_mins(30)).start()?.stop()?;
            }
            ("imagenet", package.clone(), package.join("set"))
        };
        let mut pictures: Vec<PathBuf> = std::fs::read_dir(&pictures)
            .with_context(|| format!("no pictures in {}", pictures.display()))?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "png"))
            .collect();
        pictures.sort();
        ensure!(!pictures.is_empty(), "no picture to ask");
        Ok(Self { task, package, pictures })
    }
}

/// A variant of the ladder, with the figures it was measured to have.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) accuracy: f64,
    pub(crate) single_ms: f64,
    pub(crate) p99_ms: f64,
}

/// A kind of queries.
pub(crate) struct Kind {
    pub(crate) floor: f64,
    pub(crate) bound: Duration,
    /// The cheapest variant that keeps the floor.
    pub(crate) cheapest: Variant,
}

/// What is registered, as measured: names and accuracy from the list of variants, times from their profiles.
pub(crate) fn variants(profiles: &Value, listed: &Value) -> Result<Vec<Variant>> {
    let profiles = profiles["profiles"].as_array().context("profiles")?;
    let listed = listed["variants"].as_array().context("variants")?;
    let of = |one: &Value| {
        let name = one["name"].as_str().context("a name")?;
        let profile = profiles.iter().find(|profile| profile["variant"] == name);
        let profile = profile.with_context(|| format!("{name} has no profile"))?;
        let alone = &profile["profile"]["latency"][0];
        let us = |figure: &str| alone[figure].as_f64().with_context(|| format!("no {figure} of {name}"));
        let accuracy = one["accuracy"].as_f64().with_context(|| format!("no accuracy of {name}"))?;
        Ok(Variant {
            name: name.to_owned(),
            accuracy,
            single_ms: us("mean_us")? / 1e3,
            p99_ms: us("p99_us")? / 1e3,
        })
    };
    listed.iter().map(of).collect()
}

/// The most accurate variant, and kinds of queries: a low and a high floor, each within a tight and a loose bound.
pub(crate) fn kinds(all: &[Variant]) -> Result<(Variant, Vec<Kind>)> {
    let by = |better: fn(&Variant, &Variant) -> bool, among: &[Variant]| {
        let mut found = among.first().cloned().context("a ladder has variants")?;
        for one in among {
            if better(one, &found) {
                found = one.clone();
            }
        }
        Ok::<_, anyhow::Error>(found)
    };
    let best = by(|one, other| one.accuracy > other.accuracy, all)?;
    let least = by(|one, other| one.accuracy < other.accuracy, all)?.accuracy;
    let mut kinds = Vec::new();
    for way in FLOORS {
        let floor = ((least + way * (best.accuracy - least)) * 1e4).floor() / 1e4;
        let keep: Vec<Variant> = all.iter().filter(|one| one.accuracy >= floor).cloned().collect();
        let cheapest = by(|one, other| one.single_ms < other.single_ms, &keep)?;
        for times in BOUNDS {
            let bound = Duration::from_secs_f64((best.p99_ms * times / 1e3).max(0.05));
            kinds.push(Kind { floor, bound, cheapest: cheapest.clone() });
        }
    }
    Ok((best, kinds))
}
