//! Pages about what is registered, and the OpenAPI document.

use crate::database::{Database, on_both_databases};
use crate::demo::Demo;
use anyhow::{Context, Result, ensure};

on_both_databases! {
    every_page_without_parameters_answers,
    each_variant_shows_its_profile_and_where_each_figure_comes_from,
    the_command_line_shows_the_same_for_people_and_for_programs,
}

fn every_page_without_parameters_answers(database: Database) -> Result<()> {
    let demo = Demo::start_on(database, &[])?;
    let document = demo.server.get_json("/openapi.json")?;
    let paths = document["paths"].as_object().context("no paths")?;
    let mut asked = 0;
    for (path, methods) in paths {
        if methods.get("get").is_some() && !path.contains('{') {
            let response = demo.server.get(path)?;
            // What has no end is told only to those who ask for that.
            let expected = if methods["get"]["responses"].get("406").is_some() { 406 } else { 200 };
            ensure!(response.status == expected, "{path}: {} {}", response.status, response.text());
            asked += 1;
        }
    }
    ensure!(asked >= 8, "only {asked} pages in {document}");
    demo.server.stop()
}

fn each_variant_shows_its_profile_and_where_each_figure_comes_from(database: Database) -> Result<()> {
    let demo = Demo::start_on(database, &[])?;
    let shown = demo.server.get_json("/v1/tasks/fashion")?;
    let variants = shown["variants"].as_array().context("no variants")?;
    ensure!(variants.len() == 12, "{shown}");
    let mut on_frontier = 0;
    for variant in variants {
        let text = variant.to_string();
        ensure!(text.contains("\"measured\"") && text.contains("2000"), "{text}");
        ensure!(text.contains("10000"), "the figure on all 10,000 stands beside it: {text}");
        on_frontier += usize::from(variant["frontier"] == true || variant["on_frontier"] == true);
    }
    ensure!((2..12).contains(&on_frontier), "{on_frontier} on the frontier: {shown}");
    demo.server.stop()
}

fn the_command_line_shows_the_same_for_people_and_for_programs(database: Database) -> Result<()> {
    let demo = Demo::start_on(database, &[])?;
    let url = demo.server.url();
    let picture = crate::demo::fashion().join("pictures/boot.png");
    let picture = picture.to_str().context("a plain path")?;
    for args in [
        vec!["task", "list"],
        vec!["task", "show", "fashion"],
        vec!["model", "list"],
        vec!["explain", "fashion", "--accuracy", "0.9"],
        vec!["query", "fashion", picture, "--accuracy", "0.9"],
    ] {
        let mut for_people = args.clone();
        for_people.extend(["--server", &url]);
        let shown = demo.server.command(&for_people)?;
        ensure!(shown.status.success(), "{args:?}: {}", String::from_utf8_lossy(&shown.stderr));
        let mut for_programs = for_people.clone();
        for_programs.push("--json");
        let shown = demo.server.command(&for_programs)?;
        ensure!(shown.status.success(), "{args:?}: {}", String::from_utf8_lossy(&shown.stderr));
        serde_json::from_slice::<serde_json::Value>(&shown.stdout).with_context(|| format!("{args:?}"))?;
    }
    let refused =
        demo.server.command(&["query", "fashion", picture, "--accuracy", "0.999", "--server", &url])?;
    ensure!(refused.status.code() == Some(2), "{refused:?}");
    for wrong in [
        vec!["query", "--nonsense"],
        vec!["query", "fashion", picture, "--accuracy", "2", "--server", &url],
        vec!["query", "fashion", picture, "--latency-ms", "-1", "--server", &url],
    ] {
        let wrong = demo.server.command(&wrong)?;
        ensure!(wrong.status.code() == Some(64), "{wrong:?}");
    }
    demo.server.stop()
}
