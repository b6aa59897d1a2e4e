//! `modelless profile show|export|import|plot`: what a server has measured.

mod csv;
pub(crate) mod file;

use super::{Server, list, segment, text};
use crate::exit::usage;
use crate::out;
use crate::plot::{self, Point};
use crate::table::Table;
use anyhow::Context;
use clap::Args;
use http::StatusCode;
use modelless_decision::steady::reason;
use modelless_gateway::{ProfileEntry, ProfileFile};
use modelless_types::{Bytes, Profile, Provenance, StageTime};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// A task, for all its variants in short; or a variant, for all that is known of it.
    name: String,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Export {
    /// The file: JSON, or CSV where its name ends in .csv. Otherwise JSON to standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only of this task.
    #[arg(long)]
    task: Option<String>,
    /// Only of this variant.
    #[arg(long)]
    variant: Option<String>,
    /// Only of this device class.
    #[arg(long)]
    device_class: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Import {
    /// What `profile export` or `profile run --out` wrote.
    file: PathBuf,
    /// Also in place of what the server has measured itself.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Plot {
    /// The task.
    task: String,
    /// Where the picture goes: SVG, or PNG where its name ends in .png.
    #[arg(long, value_name = "FILE", value_parser = plot::path)]
    out: PathBuf,
    /// Of this device class. Otherwise that of which most is known.
    #[arg(long)]
    device_class: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// What a server knows, as far as it is asked for.
fn fetch(
    server: &Server,
    wanted: &[(&str, Option<&str>)],
) -> anyhow::Result<(StatusCode, Option<ProfileFile>)> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in wanted {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let reply = server.api()?.get(&format!("/v1/profiles?{}", query.finish()))?;
    let status = reply.status;
    if status == StatusCode::NOT_FOUND {
        return Ok((status, None));
    }
    let file: ProfileFile = serde_json::from_value(reply.ok()?.json()?)
        .context("the server told of profiles in a way that this program does not understand")?;
    file.check().map_err(anyhow::Error::msg)?;
    Ok((status, Some(file)))
}

/// The same where nothing of that name is an error.
fn fetch_all(server: &Server, wanted: &[(&str, Option<&str>)]) -> anyhow::Result<ProfileFile> {
    if let (_, Some(file)) = fetch(server, wanted)? {
        return Ok(file);
    }
    let named: Vec<String> =
        wanted.iter().filter_map(|(what, name)| Some(format!("{what} {:?}", (*name)?))).collect();
    Err(anyhow::anyhow!(
        "the server has no {}; `modelless task list` tells what there is",
        named.join(" with ")
    ))
}

pub(crate) fn show(options: &Show) -> anyhow::Result<()> {
    let name = options.name.as_str();
    let (file, in_full) = match fetch(&options.server, &[("task", Some(name))])? {
        (_, Some(file)) => (file, false),
        _ => match fetch(&options.server, &[("variant", Some(name))])? {
            (_, Some(file)) => (file, true),
            _ => return Err(anyhow::anyhow!("the server has neither a task nor a variant called {name:?}")),
        },
    };
    if options.server.json {
        return out::json(&file);
    }
    if file.profiles.is_empty() {
        return out::line(format!("nothing of {name} is measured yet"));
    }
    if in_full {
        let shown: Vec<String> = file.profiles.iter().map(variant).collect();
        return out::line(shown.join("\n\n"));
    }
    out::line(task(&file.profiles))
}

pub(crate) fn export(options: &Export) -> anyhow::Result<()> {
    let Export { out: path, task, variant, device_class, server } = options;
    let wanted = [
        ("task", task.as_deref()),
        ("variant", variant.as_deref()),
        ("device_class", device_class.as_deref()),
    ];
    let found = fetch_all(server, &wanted)?;
    let Some(path) = path else { return out::json(&found) };
    file::write(path, &found)?;
    eprintln!("{} written to {}", crate::progress::count(found.profiles.len(), "profile"), path.display());
    Ok(())
}

pub(crate) fn import(options: &Import) -> anyhow::Result<()> {
    let found = file::read(&options.file)?;
    let path = if options.replace { "/v1/profiles?replace=true" } else { "/v1/profiles" };
    let answer = options.server.api()?.post_json(path, &serde_json::to_value(&found)?)?.ok()?.json()?;
    if options.server.json {
        return out::json(&answer);
    }
    let (imported, left_out) = (list(&answer, "imported"), list(&answer, "left_out"));
    let named =
        |one| format!("{} of {} on {}", text(one, "variant"), text(one, "task"), text(one, "device_class"));
    let mut lines: Vec<String> = imported.iter().map(|one| format!("{} taken in", named(one))).collect();
    lines.extend(left_out.iter().map(|one| format!("{} left out: {}", named(one), text(one, "why"))));
    out::line(lines.join("\n"))?;
    if imported.is_empty() {
        return Err(anyhow::anyhow!("nothing was taken in"));
    }
    Ok(())
}

pub(crate) fn plot(options: &Plot) -> anyhow::Result<()> {
    let found = fetch_all(&options.server, &[("task", Some(&options.task))])?;
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &found.profiles {
        *classes.entry(&entry.profile.device_class).or_default() += 1;
    }
    let class = match &options.device_class {
        Some(class) if classes.contains_key(class.as_str()) => class.as_str(),
        Some(class) => {
            let known: Vec<&str> = classes.into_keys().collect();
            return Err(usage(format!("nothing is known of {class:?}; there is {}", known.join(", "))));
        }
        None => {
            let most = classes.iter().max_by_key(|(_, count)| **count);
            most.map(|(class, _)| *class).context("nothing of this task is measured yet")?
        }
    };
    let shown = found.profiles.iter().filter(|entry| entry.profile.device_class == class);
    let points: Vec<Point> =
        shown.clone().filter_map(|entry| Point::of(entry.variant.clone(), &entry.profile)).collect();
    let sets: BTreeSet<String> = shown.map(|entry| accuracy_from(&entry.profile)).collect();
    let note = format!("on {class}; {}", sets.into_iter().collect::<Vec<_>>().join("; "));
    let title = format!("{}: accuracy and latency of its variants", options.task);
    let path = &options.out;
    plot::write(path, &title, &note, &points)?;
    eprintln!("{} drawn to {}", crate::progress::count(points.len(), "variant"), path.display());
    // Where it is to be found; `segment` keeps what the task is called readable in a URL.
    eprintln!("the same figures: /v1/profiles?task={}", segment(&options.task));
    Ok(())
}

fn accuracy_from(profile: &Profile) -> String {
    let accuracy = &profile.accuracy;
    match accuracy.provenance {
        Provenance::Measured => {
            format!("accuracy measured on {} ({} items)", accuracy.set, accuracy.samples)
        }
        other @ (Provenance::Declared | Provenance::Estimated | Provenance::Live) => {
            format!("accuracy {other}")
        }
    }
}

/// How well the times are known.
fn known(profile: &Profile) -> String {
    let coarse = if profile.detail.coarse { ", coarse" } else { "" };
    let unsteady = if profile.detail.unsteady.is_some() { ", unsteady" } else { "" };
    format!("{}{coarse}{unsteady}", profile.latency_provenance)
}

fn ms(us: f64) -> String {
    format!("{:.3}", us / 1_000.0)
}

/// A row for each variant and device class.
fn task(entries: &[ProfileEntry]) -> String {
    let mut table = Table::new(&[
        "variant",
        ">threads",
        "device class",
        "times",
        ">ms at 1",
        ">p99 at 1",
        ">best a second",
        ">at",
        ">memory",
        ">load ms",
        ">cold",
        ">accuracy",
        "95 % interval",
    ]);
    for ProfileEntry { variant, settings, profile, .. } in entries {
        let rate = |batch: u32, us: f64| f64::from(batch) * 1e6 / us.max(f64::MIN_POSITIVE);
        let first = profile.latency.first();
        let best = profile
            .latency
            .iter()
            .max_by(|a, b| rate(a.batch, a.mean_us).total_cmp(&rate(b.batch, b.mean_us)));
        let accuracy = &profile.accuracy;
        let threads = settings.as_ref().map(|settings| settings.threads.to_string());
        table.row([
            variant.clone(),
            threads.unwrap_or_else(|| "-".to_owned()),
            profile.device_class.clone(),
            known(profile),
            first.map(|point| ms(point.mean_us)).unwrap_or_default(),
            first.map(|point| ms(point.p99_us)).unwrap_or_default(),
            best.map(|point| format!("{:.0}", rate(point.batch, point.mean_us))).unwrap_or_default(),
            best.map(|point| point.batch.to_string()).unwrap_or_default(),
            profile.memory.to_string(),
            format!("{:.0}", profile.load_time.as_millis_f64()),
            profile
                .detail
                .load_cold
                .map_or_else(|| "-".to_owned(), |time| format!("{:.0}", time.as_millis_f64())),
            format!("{:.4}", accuracy.value.as_f64()),
            if accuracy.is_declared() {
                "declared".to_owned()
            } else {
                format!("{:.4} to {:.4}", accuracy.low.as_f64(), accuracy.high.as_f64())
            },
        ]);
    }
    let unsteady = entries.iter().filter_map(|entry| {
        let why = reason(entry.profile.detail.unsteady.as_ref()?);
        Some(format!("\n{} on {}: {why}", entry.variant, entry.profile.device_class))
    });
    unsteady.fold(table.to_string(), |text, line| text + &line)
}

/// All that is known of a variant on a device class.
fn variant(entry: &ProfileEntry) -> String {
    let ProfileEntry { task, model, model_version, variant, settings, profile, .. } = entry;
    let mut lines = vec![format!(
        "{variant} of {task} (model {model} version {model_version}) on {}",
        profile.device_class
    )];
    if let Some(settings) = settings {
        let threads = crate::progress::count(settings.threads.into(), "thread");
        lines.push(format!(
            "{}, {}, {threads}, batches of up to {}",
            settings.engine, settings.precision, settings.max_batch
        ));
    }
    let mut table = Table::new(&[
        ">batch",
        ">ms mean",
        ">deviation",
        ">p99",
        ">a second",
        ">series",
        ">spread",
        ">runs",
        ">outliers",
        ">worst",
        ">peak",
    ]);
    for point in &profile.latency {
        let more = profile.detail.points.iter().find(|more| more.batch == point.batch);
        let of = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
        table.row([
            point.batch.to_string(),
            ms(point.mean_us),
            ms(point.var_us2.max(0.0).sqrt()),
            ms(point.p99_us),
            format!("{:.0}", f64::from(point.batch) * 1e6 / point.mean_us.max(f64::MIN_POSITIVE)),
            of(more.map(|more| more.rounds.to_string())),
            of(more.map(|more| ms(more.spread_us))),
            point.samples.to_string(),
            of(more.map(|more| more.outliers.to_string())),
            of(more.map(|more| ms(more.worst_us))),
            of(more.and_then(|more| more.peak).map(|peak: Bytes| peak.to_string())),
        ]);
    }
    lines.push(format!("times: {}\n{table}", known(profile)));
    lines.extend(profile.detail.unsteady.as_ref().map(reason));
    if let Some(largest) = &profile.detail.largest {
        lines.push(format!("no batch above {} here: {}", largest.batch, largest.why));
    }
    let stage = |name: &str, stage: &StageTime| match stage.samples {
        0 => format!("{name} was not measured"),
        _ => format!("{name} {} ms", ms(stage.mean_us)),
    };
    lines.push(format!("{}, {}", stage("decoding", &profile.decode), stage("preparing", &profile.prepare)));
    let cold = profile.detail.load_cold.map(|time| format!(", {:.0} ms from the disk", time.as_millis_f64()));
    lines.push(format!("load {:.0} ms{}", profile.load_time.as_millis_f64(), cold.unwrap_or_default()));
    let peak = profile.peak.map(|peak| format!(", at most {peak} with the library and everything"));
    lines.push(format!("memory {}{}", profile.memory, peak.unwrap_or_default()));
    let accuracy = &profile.accuracy;
    lines.push(format!(
        "accuracy {:.4} ({:.4} to {:.4}), {}, on {}",
        accuracy.value.as_f64(),
        accuracy.low.as_f64(),
        accuracy.high.as_f64(),
        accuracy_from(profile),
        accuracy.device_class
    ));
    if profile.detail.part_of_set {
        lines.push("floors are compared with the lower end, until the whole set is compared".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::profile::file::tests::entry;

    #[test]
    fn a_task_is_shown_in_short_and_a_variant_in_full() {
        let mut coarse = entry("b-fp32");
        (coarse.profile.detail.coarse, coarse.profile.detail.part_of_set) = (true, true);
        let short = task(&[entry("a-fp32"), coarse.clone()]);
        assert!(short.contains("a-fp32") && short.contains("measured, coarse"), "{short}");
        assert!(short.contains("coarse, unsteady") && short.contains("b-fp32 on cpu:a"), "{short}");
        let full = variant(&coarse);
        for words in [
            "model m version 2",
            "300 ms from the disk",
            "no batch above 8 here",
            "measured in an unsteady minute: its batches took 23 % longer most of the time than at best, and work that",
            "it is measured again when a node has nothing to do",
            "0.9000 (0.8900 to 0.9100)",
        ] {
            assert!(full.contains(words), "{words}: {full}");
        }
        // What an older version stored has less to tell.
        coarse.profile.detail = modelless_types::Detail::default();
        assert!(variant(&coarse).contains('-'));
    }
}
