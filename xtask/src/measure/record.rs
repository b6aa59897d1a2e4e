//! Keeping a figure: raw JSON that is never changed again, and one line for each measure in the documents.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Outcome, host};
use crate::command::{output, program};

const TABLE: &str = "docs/measurements.md";
const HEAD: &str = "\
# Measurements

Every figure is made by a command, and made again by the same command. The raw file holds the commit, the host, the
time that the host took away, the seeds and every repetition. A figure from a checkout with uncommitted changes says
`dirty`. Percentiles are nearest-rank: values that were really seen.

| name | what | result | bounds | commit | date | raw | command |
|---|---|---|---|---|---|---|---|
";

/// What was found, for whoever reads of it.
pub(crate) struct Figure {
    /// The first word of its line.
    pub(crate) name: String,
    /// Where in `bench/results` its raw files lie.
    pub(crate) folder: &'static str,
    pub(crate) what: String,
    /// How it is made again.
    pub(crate) command: String,
}

pub(crate) struct Stamp {
    pub(crate) commit: String,
    pub(crate) dirty: bool,
    pub(crate) date: String,
}

/// Writes both and gives the raw file's path in the checkout.
pub(crate) fn write(
    figure: &Figure,
    outcome: &Outcome,
    root: &Path,
    before: &host::Load,
    after: &host::Load,
) -> Result<String> {
    let stamp = stamp(root)?;
    let checks: Vec<Value> = outcome
        .checks
        .iter()
        .map(|check| {
            json!({"what": check.what, "value": check.value, "at_most": check.limit, "unit": check.unit, "holds": check.holds()})
        })
        .collect();
    let raw = json!({
        "name": figure.name,
        "what": figure.what,
        "command": figure.command,
        "commit": stamp.commit,
        "dirty": stamp.dirty,
        "date": stamp.date,
        "host": host::facts()?,
        "load": before.between(after),
        "seeds": outcome.seeds,
        "checks": checks,
        "summary": outcome.summary,
        "repetitions": outcome.repetitions,
    });
    let text = format!("{}\n", indent_top(&raw));
    ensure_portable(&text, root)?;

    let dirty = if stamp.dirty { "-dirty" } else { "" };
    let folder = format!("bench/results/{}", figure.folder);
    let part = if figure.name == figure.folder { String::new() } else { format!("-{}", figure.name) };
    let file = format!("{folder}/{}-{}{dirty}{part}.json", stamp.date.replace(':', ""), stamp.commit);
    fs::create_dir_all(root.join(&folder))?;
    fs::write(root.join(&file), text).with_context(|| format!("writing {file}"))?;

    let table = root.join(TABLE);
    let old = fs::read_to_string(&table).unwrap_or_else(|_| HEAD.to_owned());
    let row = row(figure, outcome, &stamp, &file);
    fs::write(&table, with_row(&old, &figure.name, &row)).with_context(|| format!("writing {TABLE}"))?;
    Ok(file)
}

/// Which code is measured, and when.
pub(crate) fn stamp(root: &Path) -> Result<Stamp> {
    let git = |args: &[&str]| output(program(root, "git").args(args)).map(|text| text.trim().to_owned());
    // What measuring writes itself does not make the measured code another.
    let changed = git(&[
        "status",
        "--porcelain",
        "--",
        ".",
        ":!bench/results",
        ":!docs/measurements.md",
        ":!docs/img/generated.svg",
        ":!fuzz/corpus",
    ])?;
    Ok(Stamp {
        commit: git(&["rev-parse", "--short=10", "HEAD"])?,
        dirty: !changed.is_empty(),
        date: output(program(root, "date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?.trim().to_owned(),
    })
}

fn row(figure: &Figure, outcome: &Outcome, stamp: &Stamp, file: &str) -> String {
    let bounds: Vec<String> = outcome
        .checks
        .iter()
        .map(|check| {
            let verdict = if check.holds() { "" } else { " **missed**" };
            format!("{} ≤ {} {}{verdict}", check.what, check.limit, check.unit)
        })
        .collect();
    let dirty = if stamp.dirty { " dirty" } else { "" };
    let date = stamp.date.split('T').next().unwrap_or_default();
    let cells = [
        figure.name.clone(),
        figure.what.clone(),
        outcome.result.clone(),
        bounds.join("; "),
        format!("{}{dirty}", stamp.commit),
        date.to_owned(),
        format!("[json](../{file})"),
        format!("`{}`", figure.command),
    ];
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "/").replace('\n', " ")).collect();
    format!("| {} |", cells.join(" | "))
}

/// The document with this measure's line put in or replaced, everything else as it was.
fn with_row(document: &str, name: &str, row: &str) -> String {
    let start = format!("| {name} |");
    let mut lines: Vec<&str> = document.lines().collect();
    if let Some(old) = lines.iter_mut().find(|line| line.starts_with(&start)) {
        *old = row;
    } else {
        // The first table; those after it are beside it.
        let first = lines.iter().position(|line| line.starts_with('|')).unwrap_or(lines.len());
        let rows = lines.iter().skip(first).take_while(|line| line.starts_with('|')).count();
        lines.insert(first + rows, row);
    }
    lines.join("\n") + "\n"
}

/// One line for each top-level key and repetition: a diff and a person can read it, and it stays small.
pub(crate) fn indent_top(raw: &Value) -> String {
    let fields = raw.as_object().into_iter().flatten().map(|(key, value)| {
        let value = match value.as_array() {
            Some(items) if items.len() > 1 => {
                let items: Vec<String> = items.iter().map(|item| format!("  {item}")).collect();
                format!("[\n{}\n]", items.join(",\n"))
            }
            Some(_) | None => value.to_string(),
        };
        format!("{}: {value}", Value::from(key.as_str()))
    });
    format!("{{\n{}\n}}", fields.collect::<Vec<_>>().join(",\n"))
}

/// No path and no name of this machine gets into the repository.
fn ensure_portable(text: &str, root: &Path) -> Result<()> {
    let root = root.to_string_lossy();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    ensure!(!text.contains(&*root), "the raw result names the path of this checkout; this is a bug");
    let names_host = host.len() > 3 && text.contains(&format!("\"{host}\""));
    ensure!(!names_host, "the raw result names this machine; this is a bug");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_added_once_and_then_replaced() {
        let document = with_row(&format!("{HEAD}\nA word after.\n"), "pick", "| pick | one |");
        assert!(document.ends_with("|---|---|\n| pick | one |\n\nA word after.\n"), "{document}");
        let document = with_row(&document, "start", "| start | x |");
        let document = with_row(&document, "pick", "| pick | two |");
        assert!(document.contains("| pick | two |\n| start | x |\n\nA word after.\n"), "{document}");
        assert!(!document.contains("one"));
        let beside = "\nA word after.\n\n| beside |\n|---|\n| 1 |\n";
        let document = with_row(&format!("{HEAD}{beside}"), "pick", "| pick | one |");
        assert!(document.ends_with(&format!("|---|---|\n| pick | one |\n{beside}")), "{document}");
    }

    #[test]
    fn the_raw_file_is_json_with_a_line_for_each_repetition() {
        let raw = json!({"name": "x", "repetitions": [{"a": 1}, {"a": 2}], "seeds": []});
        let text = indent_top(&raw);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), raw);
        assert_eq!(text.lines().count(), 8);
    }

    #[test]
    fn a_path_of_this_checkout_is_refused() {
        assert!(ensure_portable("{\"at\": \"/here/x\"}", Path::new("/here")).is_err());
        assert!(ensure_portable("{}", Path::new("/here")).is_ok());
    }
}
