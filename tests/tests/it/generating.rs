//! Variants made from the command line: from one file and a labelled set to a package that registers as it is, whose figures
//! numpy and ONNX Runtime find again without any code of ours.

use crate::demo::{fashion, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Request, Server, server};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A package with one model of the demo as its author might have it: one file in fp32.
fn package(model: &str) -> Result<TempDir> {
    let folder = modelless_testkit::temp_dir("generating")?;
    for place in ["models", "sample"] {
        fs::create_dir(folder.path().join(place))?;
    }
    for name in ["sample/sample-2000-images-idx3-ubyte.gz", "sample/sample-2000-labels-idx1-ubyte.gz"] {
        fs::copy(fashion().join(name), folder.path().join(name))?;
    }
    fs::copy(
        fashion().join(format!("models/{model}.onnx")),
        folder.path().join(format!("models/{model}.onnx")),
    )?;
    let task = fs::read_to_string(fashion().join("task.toml"))?;
    let task: Vec<&str> = task.lines().filter(|line| !line.starts_with("also")).collect();
    fs::write(folder.path().join("task.toml"), task.join("\n"))?;
    let manifest = fs::read_to_string(fashion().join(format!("models/{model}.toml")))?;
    let (head, _) = manifest.split_once("[[variants]]").context("no variants")?;
    let alone = format!("{head}[[variants]]\nprecision = \"fp32\"\nfile = \"{model}.onnx\"\n");
    fs::write(folder.path().join(format!("models/{model}.toml")), alone)?;
    Ok(folder)
}

fn modelless(words: &[&str]) -> Result<Output> {
    Ok(Command::new(server::binary()?).args(words).output()?)
}

fn generate(package: &Path, out: &Path, words: &[&str]) -> Result<Output> {
    let (package, out) = (package.to_string_lossy(), out.to_string_lossy());
    modelless(&[&["variant", "generate", &package, "--out", &out, "--json"], words].concat())
}

fn generated(package: &Path, out: &Path, words: &[&str]) -> Result<Value> {
    let output = generate(package, out, words)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What is said where it fails.
fn said(package: &Path, out: &Path, words: &[&str]) -> Result<String> {
    let output = generate(package, out, words)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "it went well: {said}");
    ensure!(
        !out.join("models").exists() && !out.join("task.toml").exists(),
        "something was written after: {said}"
    );
    Ok(said)
}

fn variants(report: &Value) -> Result<Vec<&Value>> {
    Ok(report["variants"].as_array().context("no variants")?.iter().collect())
}

/// How many answers of each are right, as others count them.
fn independent(dump: &Path, files: &[PathBuf]) -> Result<Vec<f64>> {
    let tools = modelless(&["variant", "tools", "--json"])?;
    let tools: Value = serde_json::from_slice(&tools.stdout)?;
    let text = |name: &str| tools[name].as_str().with_context(|| format!("no {name}"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/count_right.py");
    let mut command = Command::new(text("python")?);
    command.env("PYTHONPATH", text("libraries")?).arg(script).arg(dump).args(files);
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)?.lines().map(|line| Ok(line.parse()?)).collect()
}

#[test]
fn one_file_becomes_a_frontier_that_registers_and_whose_accuracy_others_find_again() -> Result<()> {
    let package = package("cnn_m")?;
    let out = package.path().join("out");
    let report = generated(package.path(), &out, &[])?;
    ensure!(report["calibration_set"]["items"] == 256, "{report}");
    let variants = variants(&report)?;
    let wanted: Vec<&Value> = variants
        .iter()
        .copied()
        .filter(|one| one["dominated_by"].is_null() && one["left_out"].is_null())
        .collect();
    let named = |name: &Value| wanted.iter().any(|one| one["variant"] == *name);
    let parent = variants.iter().find(|one| one["made"].is_null()).context("no parent")?;
    for one in variants.iter().filter(|one| !one["dominated_by"].is_null()) {
        ensure!(named(&one["dominated_by"]), "what dominates is not dominated: {one}");
    }
    let accuracy = |one: &Value| {
        one["profile"]["accuracy"]["value"].as_f64().map(|ppm| ppm / 1e6).context("no accuracy")
    };
    // Whether eight bits are quicker is the processor's matter; that nothing is kept which another clearly beats is ours.
    let memory = |one: &Value| one["profile"]["memory"].as_u64().context("no memory");
    // Of one alone, and of each in the batch that takes the least.
    let times = |one: &Value| -> Result<(f64, f64)> {
        let points = one["profile"]["latency"].as_array().context("no latency")?;
        let each = |point: &Value| Some(point["mean_us"].as_f64()? / point["batch"].as_f64()?);
        let each: Vec<f64> = points.iter().filter_map(each).collect();
        Ok((*each.first().context("nothing timed")?, each.iter().copied().fold(f64::INFINITY, f64::min)))
    };
    let kept = || variants.iter().filter(|one| one["left_out"].is_null());
    for (one, other) in wanted.iter().flat_map(|one| kept().map(move |other| (*one, *other))) {
        let as_good = accuracy(other)? >= accuracy(one)? && memory(other)? <= memory(one)?;
        let (own, others) = (times(one)?, times(other)?);
        let quicker = others.0 < 0.8 * own.0 && others.1 < 0.8 * own.1;
        ensure!(
            !(as_good && quicker),
            "{} is worth having beside {}: {report}",
            one["variant"],
            other["variant"]
        );
    }
    let useful = wanted.iter().filter(|one| {
        let near = accuracy(one).is_ok_and(|own| accuracy(parent).is_ok_and(|parents| own > parents - 0.02));
        near && !one["made"].is_null()
            && one["bytes"].as_u64() < parent["bytes"].as_u64().map(|bytes| bytes / 2)
    });
    ensure!(useful.count() >= 1, "nothing worth having that its author did not supply: {report}");
    for one in &variants {
        ensure!(one["made"].is_null() || one["made"]["check"]["items"] == 512, "{one}");
    }

    // Numpy and ONNX Runtime, on what the adapter gives to the model, to the last item.
    let dump = package.path().join("dump");
    let words =
        ["variant", "dump", &out.to_string_lossy(), "--model", "cnn_m", "--out", &dump.to_string_lossy()];
    let dumped = modelless(&words)?;
    ensure!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    let name = |one: &Value| one["variant"].as_str().map(str::to_owned).context("no name");
    let files: Vec<PathBuf> = variants
        .iter()
        .map(|one| Ok(out.join(format!("models/{}.onnx", name(one)?))))
        .collect::<Result<_>>()?;
    for (one, right) in variants.iter().zip(independent(&dump, &files)?) {
        let about = &one["profile"]["accuracy"];
        let samples = about["samples"].as_f64().context("no samples")?;
        ensure!(about["samples"] == 1_744, "{about}");
        let ours = accuracy(one)? * samples;
        ensure!((ours - right).abs() < 0.01, "{}: {ours} against {right}", name(one)?);
    }

    let server = Server::start(&["--demo"])?;
    let registered =
        server.command(&["model", "register", &out.to_string_lossy(), "--server", &server.url()])?;
    let clash = String::from_utf8_lossy(&registered.stderr).into_owned();
    ensure!(
        !registered.status.success() && clash.contains("cnn_m"),
        "the demo has a model of that name: {clash}"
    );
    let next = package.path().join("next");
    let sent = ["--only", "int8-entropy", "--register", "--promote", "--server", &server.url()];
    let registered = generate(package.path(), &next, &sent)?;
    ensure!(registered.status.success(), "{}", String::from_utf8_lossy(&registered.stderr));
    let model = server.get_json("/v1/models/fashion/cnn_m")?;
    let versions = model["versions"].as_array().context("no versions")?;
    let default = versions.iter().find(|version| version["default"] == true).context("no default")?;
    ensure!(
        default["version"] == 2 && versions.len() == 2,
        "it is the next version, and the default: {model}"
    );
    let ask = "/v1/tasks/fashion?variant=cnn_m.v2-int8-entropy&latency_ms=20000";
    let answer =
        server.send(&Request::post(ask).header("content-type", "image/png").body(picture("boot.png")))?;
    ensure!(answer.status == 200 && answer.json()?[0]["label"] == "Ankle boot", "{answer}");
    server.stop()
}

#[test]
fn a_second_run_makes_nothing_again_and_a_damaged_artefact_is_made_again() -> Result<()> {
    let package = package("mlp_s")?;
    let out = package.path().join("out");
    let words = ["--no-measure", "--only", "int8", "--only", "svd"];
    let first = generated(package.path(), &out, &words)?;
    let again = generated(package.path(), &out, &words)?;
    let made = |report: &Value| -> Result<Vec<(Value, Value)>> {
        let made = variants(report)?.into_iter().filter(|one| !one["made"].is_null());
        Ok(made.map(|one| (one["sha256"].clone(), one["made"]["reused"].clone())).collect())
    };
    let (first, again) = (made(&first)?, made(&again)?);
    ensure!(first.len() >= 4 && first.iter().all(|(_, reused)| reused == false), "{first:?}");
    ensure!(again.iter().all(|(_, reused)| reused == true), "{again:?}");
    ensure!(first.iter().map(|(sha256, _)| sha256).eq(again.iter().map(|(sha256, _)| sha256)));

    let damaged = out.join("models/mlp_s-int8-entropy.onnx");
    fs::OpenOptions::new().write(true).open(&damaged)?.set_len(100)?;
    let mended = made(&generated(package.path(), &out, &words)?)?;
    ensure!(mended.iter().filter(|(_, reused)| reused == false).count() == 1, "{mended:?}");
    ensure!(fs::metadata(&damaged)?.len() > 100);
    Ok(())
}

#[test]
fn a_smaller_input_is_a_model_of_its_own() -> Result<()> {
    let package = package("cnn_l")?;
    let out = package.path().join("out");
    let report = generated(package.path(), &out, &["--only", "size", "--size", "26"])?;
    let smaller: Vec<&Value> =
        variants(&report)?.into_iter().filter(|one| one["model"] == "cnn_l-at-26").collect();
    ensure!(smaller.len() >= 2, "{report}");
    let manifest = fs::read_to_string(out.join("models/cnn_l-at-26.toml"))?;
    ensure!(manifest.contains("width = 26") && manifest.contains("height = 26"), "{manifest}");
    // Through its own adapter, or the tensors would not even fit.
    for one in smaller {
        let about = &one["profile"]["accuracy"];
        let right = about["value"].as_u64().context("no accuracy")?;
        ensure!(right > 800_000 && about["samples"] == 1_744, "{one}");
    }
    // What is not asked for any more is no part of the package; what is somebody else's is left alone.
    fs::write(out.join("models/mine.txt"), "notes")?;
    generated(package.path(), &out, &["--only", "int8-dynamic", "--no-measure"])?;
    let mut left: Vec<_> = fs::read_dir(out.join("models"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    left.sort();
    ensure!(left == ["cnn_l-fp32.onnx", "cnn_l-int8-dynamic.onnx", "cnn_l.toml", "mine.txt"], "{left:?}");
    Ok(())
}

#[test]
fn what_cannot_be_used_is_told_by_name_and_leaves_no_package() -> Result<()> {
    let package = package("mlp_s")?;
    let (out, model) = (package.path().join("out"), package.path().join("models/mlp_s.onnx"));
    let whole = fs::read(&model)?;
    fs::write(&model, &whole[..whole.len() / 2])?;
    let damaged = said(package.path(), &out, &[])?;
    ensure!(damaged.contains("mlp_s.onnx") && damaged.contains("damaged"), "{damaged}");

    // The operators' version is written where the domain is empty: raised beyond all that there are.
    let mut strange = whole.clone();
    let opset = strange.windows(4).rposition(|bytes| bytes == [0x42, 0x02, 0x10, 13]).or_else(|| {
        strange.windows(6).rposition(|bytes| bytes == [0x42, 0x04, 0x0a, 0x00, 0x10, 13]).map(|at| at + 2)
    });
    strange[opset.context("no opset")? + 3] = 127;
    fs::write(&model, strange)?;
    let opset = said(package.path(), &out, &[])?;
    ensure!(opset.contains("unknown-opset") && opset.contains("127"), "{opset}");
    fs::write(&model, &whole)?;

    let set = package.path().join("set.jsonl");
    fs::write(&set, "\n")?;
    let set = set.to_string_lossy();
    ensure!(said(package.path(), &out, &["--set", &set])?.contains("empty"));
    let images = package.path().join("sample/sample-2000-images-idx3-ubyte.gz");
    let shared = said(package.path(), &out, &["--calibration-set", &images.to_string_lossy()])?;
    ensure!(shared.contains("2000 of its inputs"), "{shared}");
    let unknown = said(package.path(), &out, &["--only", "int3"])?;
    ensure!(unknown.contains("int3") && unknown.contains("int8-entropy"), "{unknown}");
    let missing = said(package.path(), &out, &["--variant", "mlp_s-int8"])?;
    ensure!(missing.contains("it has mlp_s-fp32"), "{missing}");
    let large = self::package("cnn_l")?;
    let slow = said(large.path(), &out, &["--time", "1"])?;
    ensure!(slow.contains("too-slow") && slow.contains("more than 1 s of a processor"), "{slow}");
    let small = said(package.path(), &out, &["--memory", "40MiB"])?;
    ensure!(small.contains("(--memory)") && !small.contains("too-slow"), "{small}");
    generated(package.path(), &out, &["--no-measure", "--only", "int8-dynamic"])?;
    Ok(())
}

#[test]
fn a_set_with_what_is_no_number_is_told_with_its_item() -> Result<()> {
    let folder = modelless_testkit::temp_dir("generating")?;
    fs::create_dir(folder.path().join("models"))?;
    let floats = |value: f32| -> String {
        let bytes: Vec<u8> = (0..784).flat_map(|_| value.to_le_bytes()).collect();
        base64(&bytes)
    };
    let line = |value: f32| json!({"label": 0, "input": floats(value)}).to_string();
    let values = [0.1, 0.2, 0.3, 0.4, f32::NAN, 0.6, 0.7, 0.8];
    fs::write(folder.path().join("set.jsonl"), values.map(line).join("\n"))?;
    let example = fashion().join("../fashion-tensor");
    let task = fs::read_to_string(example.join("task.toml"))?;
    let (head, _) = task.split_once("[labelled-set]").context("no set")?;
    let head: Vec<&str> = head.lines().filter(|line| !line.starts_with("also")).collect();
    let set = "[labelled-set]\nname = \"eight\"\npath = \"set.jsonl\"\n";
    fs::write(folder.path().join("task.toml"), format!("{}\n{set}", head.join("\n")))?;
    let model = fs::read_to_string(example.join("models/cnn_m.toml"))?;
    let file = fashion().join("models/cnn_m.onnx").canonicalize()?;
    let model: Vec<String> = model
        .lines()
        .map(|line| if line.starts_with("file") { format!("file = {file:?}") } else { line.to_owned() })
        .collect();
    fs::write(folder.path().join("models/cnn_m.toml"), model.join("\n"))?;
    let said = said(folder.path(), &folder.path().join("out"), &[])?;
    ensure!(said.contains("not-finite") || said.contains("finite"), "{said}");
    ensure!(said.contains("item"), "{said}");
    Ok(())
}

/// Digests of all that was made, by name.
fn digests(report: &Value) -> Result<Vec<(String, String)>> {
    let text = |one: &Value, what: &str| one[what].as_str().map(str::to_owned).context("no text");
    variants(report)?.into_iter().map(|one| Ok((text(one, "variant")?, text(one, "sha256")?))).collect()
}

/// What is asked for, and when it is killed.
type Moment<'a> = (&'a [&'a str], &'a dyn Fn() -> bool);

/// Killed while it writes what the box reads, and while the box works, with settings that change in between: what comes of
/// the next whole run is what a run in a fresh folder gives.
#[test]
fn a_run_that_was_killed_is_gone_on_with_or_begun_anew_and_never_mixed() -> Result<()> {
    let package = package("cnn_m")?;
    let (out, fresh) = (package.path().join("out"), package.path().join("fresh"));
    let few = ["--no-measure", "--only", "int8-minmax", "--only", "int8-entropy", "--calibration", "64"];
    let many = ["--no-measure", "--only", "int8-minmax", "--only", "int8-entropy", "--calibration", "128"];
    let work = out.join(".work");
    let whole = generated(package.path(), &out, &many)?;
    let begins = |name: &str| {
        let entries = fs::read_dir(&work).into_iter().flatten().filter_map(Result::ok);
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(name)).count()
    };
    let job = work.join("job.json");
    // Each finds what the last one left, and the box of the second is killed with it.
    let moments: [Moment<'_>; 3] =
        [(&few, &|| begins(".part") > 0), (&many, &|| job.exists()), (&few, &|| begins(".part") > 0)];
    let mut killed = 0;
    for (words, now) in moments {
        let _ = fs::remove_file(&job);
        let (from, to) = (package.path().to_string_lossy(), out.to_string_lossy());
        let mut child = Command::new(server::binary()?)
            .args(["variant", "generate", &from, "--out", &to])
            .args(words)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()?;
        modelless_testkit::wait::until(std::time::Duration::from_mins(1), || {
            let over = now() || child.try_wait()?.is_some();
            Ok(if over { Ok(()) } else { Err("it is still at something else".to_owned()) })
        })?;
        killed += usize::from(child.try_wait()?.is_none());
        let _ = child.kill();
        child.wait()?;
    }
    ensure!(killed >= 2, "it was done before it could be killed");
    let again = generated(package.path(), &out, &many)?;
    ensure!(digests(&again)? == digests(&whole)?, "{again}");
    let (own, clean) = (generated(package.path(), &out, &few)?, generated(package.path(), &fresh, &few)?);
    ensure!(digests(&own)? == digests(&clean)?, "{own}\n{clean}");
    ensure!(digests(&own)? != digests(&again)?, "so few items calibrate otherwise");
    ensure!(begins(".part") == 0 && begins("tensors-") == 2, "nothing of others is left");
    Ok(())
}

/// A disk of one mebibyte, where the kernel lets us have one.
#[test]
fn a_full_disk_is_told_and_room_later_is_enough() -> Result<()> {
    let package = package("cnn_l")?;
    let disk = package.path().join("disk");
    fs::create_dir(&disk)?;
    let script = format!(
        "mount -t tmpfs -o size=6m none {0} && {1} variant generate {2} --out {0}/out --no-measure --only int8 --only fp16; \
         echo ended with $?; find {0}/out -name '.*.part' | wc -l; mount -o remount,size=64m {0} && \
         {1} variant generate {2} --out {0}/out --no-measure --only int8 --only fp16 --json",
        disk.display(),
        server::binary()?.display(),
        package.path().display()
    );
    let output =
        Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]).output()?;
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{out}\n{said}");
    ensure!(out.starts_with("ended with 1\n0\n"), "{out}\n{said}");
    ensure!(said.contains("make room and start again"), "{said}");
    let report = out.split_once("0\n").context("nothing was told")?.1;
    let report: Value = serde_json::from_str(report)?;
    ensure!(variants(&report)?.len() == 6, "{report}");
    Ok(())
}

/// The same package with the model as PyTorch saved it.
#[cfg(feature = "torch")]
fn saved_by_pytorch(model: &str) -> Result<TempDir> {
    let package = package(model)?;
    let models = package.path().join("models");
    fs::copy(fashion().join(format!("models/{model}.pt")), models.join(format!("{model}.pt")))?;
    fs::remove_file(models.join(format!("{model}.onnx")))?;
    let path = models.join(format!("{model}.toml"));
    let manifest = fs::read_to_string(&path)?;
    let manifest = manifest.replace(".onnx", ".pt").replace("precision =", "engine = \"torch\"\nprecision =");
    fs::write(path, manifest)?;
    Ok(package)
}

#[cfg(feature = "torch")]
fn named<'a>(report: &'a Value, name: &str) -> Result<&'a Value> {
    let found = variants(report)?.into_iter().find(|one| one["variant"] == name);
    found.with_context(|| format!("no {name}: {report}"))
}

/// As exact as rounding is, on real inputs, and as accurate as its parent on the whole set.
#[cfg(feature = "torch")]
fn is_its_parent(own: &Value, parent: &Value) -> Result<()> {
    let check = &own["made"]["check"];
    ensure!(check["items"] == 512 && check["top1"].as_f64() >= Some(0.998), "{check}");
    ensure!(check["largest_difference"].as_f64().is_some_and(|far| far > 0.0 && far < 1e-3), "{check}");
    let right = |one: &Value| one["profile"]["accuracy"]["value"].as_i64().context("no accuracy");
    ensure!((right(own)? - right(parent)?).abs() < 2_000, "{own} and {parent}");
    Ok(())
}

#[cfg(feature = "torch")]
#[test]
fn onnx_becomes_torchscript_that_torch_serves_with_its_parents_answers() -> Result<()> {
    let package = package("cnn_l")?;
    let out = package.path().join("out");
    let report = generated(package.path(), &out, &["--only", "torchscript", "--version", "2"])?;
    let own = named(&report, "cnn_l.v2-torchscript")?;
    is_its_parent(own, named(&report, "cnn_l.v2-fp32")?)?;
    let manifest = fs::read_to_string(out.join("models/cnn_l.toml"))?;
    ensure!(
        manifest.contains("engine = \"torch\"") && manifest.contains("cnn_l.v2-torchscript.pt"),
        "{manifest}"
    );
    let server = Server::start(&["--demo"])?;
    let registered =
        server.command(&["model", "register", &out.to_string_lossy(), "--server", &server.url()])?;
    ensure!(registered.status.success(), "{}", String::from_utf8_lossy(&registered.stderr));
    let ask = "/v1/tasks/fashion?variant=cnn_l.v2-torchscript&latency_ms=20000";
    let answer =
        server.send(&Request::post(ask).header("content-type", "image/png").body(picture("boot.png")))?;
    ensure!(answer.status == 200 && answer.json()?[0]["label"] == "Ankle boot", "{answer}");
    ensure!(answer.header("modelless-variant") == Some("cnn_l.v2-torchscript"), "{answer}");
    server.stop()
}

#[cfg(feature = "torch")]
#[test]
fn what_pytorch_saved_becomes_onnx_and_eight_bits_checked_by_torch() -> Result<()> {
    let package = saved_by_pytorch("cnn_m")?;
    let out = package.path().join("out");
    let report = generated(package.path(), &out, &["--only", "int8-entropy"])?;
    is_its_parent(named(&report, "cnn_m-onnx")?, named(&report, "cnn_m-fp32")?)?;
    let eight = named(&report, "cnn_m-int8-entropy")?;
    ensure!(eight["profile"]["accuracy"]["value"].as_u64() > Some(900_000), "{eight}");
    let bytes = |one: &Value| one["bytes"].as_u64();
    ensure!(bytes(eight) < bytes(named(&report, "cnn_m-fp32")?).map(|bytes| bytes / 3), "{eight}");
    let manifest = fs::read_to_string(out.join("models/cnn_m.toml"))?;
    ensure!(manifest.matches("engine = \"torch\"").count() == 1, "one of them is the author's: {manifest}");
    Ok(())
}

#[test]
fn another_format_is_shown_with_the_reason_where_nothing_can_run_it() -> Result<()> {
    let package = package("mlp_s")?;
    let (out, engines) = (package.path().join("out"), modelless_testkit::temp_dir("engines")?);
    // The tools for making, and ONNX Runtime; nothing else.
    let installed = PathBuf::from(std::env::var("HOME")?).join(".local/share/modelless/engines");
    let installed = std::env::var("MODELLESS_ENGINES").map_or(installed, PathBuf::from);
    modelless(&["variant", "tools"])?;
    for name in ["generator", "onnx"] {
        std::os::unix::fs::symlink(installed.join(name), engines.path().join(name))?;
    }
    let words = ["variant", "generate", &package.path().to_string_lossy(), "--out", &out.to_string_lossy()];
    let more = ["--json", "--no-measure", "--only", "torchscript", "--only", "int8-minmax"];
    let run = Command::new(server::binary()?)
        .args([&words[..], &more].concat())
        .env("MODELLESS_ENGINES", engines.path())
        .output()?;
    ensure!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout)?;
    let (made, not) = (variants(&report)?, &report["not_made"]);
    ensure!(made.iter().any(|one| one["variant"] == "mlp_s-int8-minmax"), "the others are made: {report}");
    ensure!(not[0]["recipe"] == "torchscript" && not[0]["outcome"] == "unavailable", "{not}");
    ensure!(
        not[0]["why"].as_str().is_some_and(|why| why.contains("modelless engine install torch")),
        "{not}"
    );
    Ok(())
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let number =
            part.iter().chain(&[0, 0]).take(3).fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        for at in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= part.len() { char::from(letter) } else { '=' });
        }
    }
    text
}
