//! What was made, measured where it would serve: through the adapter and a runner, like every other variant.

use super::package::{Entry, Generated};
use super::{Request, at, digest};
use crate::earlier::{self, FRESH};
use crate::error::Error;
use crate::profile::{Profiler, Report, Subject};
use modelless_types::Profile;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::SystemTime;
use tokio::time::Instant;

/// What is known of variants, by their names.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// Their profiles.
    pub profiles: BTreeMap<String, Profile>,
    /// Those that could not be measured, and why: they are no part of what is registered, which would be refused with them.
    pub failed: BTreeMap<String, String>,
}

/// Measures all of them with the set that calibrated nothing. What was measured lately on such a device, with this very program
/// and engine, is not measured again unless that is asked for.
pub async fn measure(
    request: &Request,
    generated: &Generated,
    (profiler, again): (&Profiler, bool),
    report: Report<'_>,
) -> Result<Measured, Error> {
    let folder = request.work().join("measured");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let set = request.sets.accuracy.pack()?;
    let mut measured = Measured::default();
    let since = Instant::now();
    for (number, entry) in generated.entries.iter().enumerate() {
        let profiler = &profiler.share(since, generated.entries.len() - number);
        let kept = kept_as(request, entry, profiler, &set).await?.map(|name| folder.join(name));
        if let Some(known) = kept.as_deref().filter(|_| !again).and_then(lately) {
            measured.profiles.insert(entry.name.clone(), known);
            continue;
        }
        match one(request, entry, profiler, &mut *report).await {
            Ok(profile) => {
                let text = serde_json::to_vec(&profile).expect("it is plain data; this is a bug");
                if let Some(path) = &kept {
                    fs::write(path, text).map_err(at(path))?;
                }
                measured.profiles.insert(entry.name.clone(), profile);
            }
            // One that a runner does not take is told; the others are wanted all the same.
            Err(
                error @ (Error::Engine { .. }
                | Error::Batch { .. }
                | Error::Output { .. }
                | Error::Adapter { .. }),
            ) => {
                measured.failed.insert(entry.name.clone(), error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(measured)
}

/// What a measurement is kept as: everything that it depends on. `None` where something of that is not known.
async fn kept_as(
    request: &Request,
    entry: &Entry,
    profiler: &Profiler,
    set: &[u8],
) -> Result<Option<String>, Error> {
    let engine = profiler.engine_version(entry.settings.engine).await;
    let (Some(engine), Some(program)) = (engine, earlier::program()) else { return Ok(None) };
    let plain = "it is plain data; this is a bug";
    let settings = serde_json::to_string(&entry.settings).expect(plain);
    let how = serde_json::to_string(&profiler.asked()).expect(plain);
    let adapter = request.notation(&entry.adapter)?;
    let parts = [&entry.sha256, &settings, &adapter, profiler.device_class(), &how, &engine, &program];
    let parts = parts.map(str::as_bytes);
    Ok(Some(format!("{}.json", digest(&[parts.as_slice(), &[set]].concat()))))
}

/// What was measured and written down lately.
fn lately(path: &Path) -> Option<Profile> {
    let written = fs::metadata(path).and_then(|about| about.modified()).ok()?;
    // One from the future is of another clock.
    let fresh = SystemTime::now().duration_since(written).is_ok_and(|age| age < FRESH);
    fs::read(path).ok().filter(|_| fresh).and_then(|text| serde_json::from_slice(&text).ok())
}

async fn one(
    request: &Request,
    entry: &Entry,
    profiler: &Profiler,
    report: Report<'_>,
) -> Result<Profile, Error> {
    let artefact =
        File::open(&entry.file).map_err(|source| Error::Read { path: entry.file.clone(), source })?;
    let subject = Subject {
        name: &entry.name,
        task: &request.task,
        adapter: &entry.adapter,
        settings: &entry.settings,
        artefact,
        tokenizer: request.model.tokenizer()?,
        declared: request.model.declared(),
    };
    profiler.profile(subject, Some(&request.sets.accuracy), report).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Halves, Limits};
    use crate::manifest::Package;
    use crate::profile::{Config, Progress};
    use modelless_engine::FakeEngine;
    use modelless_engine::fake::{Computes, FakeModel};
    use modelless_store::{MemStore, Store as _};
    use modelless_testkit::temp_dir;
    use modelless_types::{Bytes, DType, TenantId, TensorSpec, VariantId};
    use std::sync::Arc;
    use std::time::Duration;

    /// One variant that gives back the number that it gets, in a package that came of it.
    async fn package(folder: &Path) -> (Request, Generated) {
        let tensor = "[{ name = \"x\", dtype = \"FP32\", shape = [1] }]";
        let task = format!("name = \"t\"\nkind = \"tensor\"\ninputs = {tensor}\noutputs = {tensor}");
        let model = "name = \"echo\"\nadapter = { kind = \"tensor\" }\n\
            variants = [{ precision = \"fp32\", file = \"echo.onnx\", max_batch = 2 }]";
        fs::create_dir_all(folder.join("models")).unwrap();
        for (file, text) in
            [("task.toml", task.as_str()), ("models/echo.toml", model), ("models/echo.onnx", "a fake's")]
        {
            fs::write(folder.join(file), text).unwrap();
        }
        let Package { task: manifest, mut models } = Package::read(folder).unwrap();
        let task =
            MemStore::default().create_task(manifest.new_task(TenantId::DEFAULT).unwrap()).await.unwrap();
        let set = |name| {
            let item = |value: f32| (bytes::Bytes::copy_from_slice(&value.to_le_bytes()), 0);
            crate::set::LabelledSet::of_bytes(name, [1.0, 2.0].map(item))
        };
        let model = models.remove(0);
        let request = Request {
            parent: 0,
            manifest,
            task,
            sets: Halves { calibration: set("calibration"), accuracy: set("accuracy") },
            out: folder.join("out"),
            recipes: Vec::new(),
            widths: Vec::new(),
            version: 1,
            limits: Limits { enter: Vec::new(), memory: Bytes(0), cpu_seconds: 1, unboxed: false },
            model,
        };
        let generated = super::super::package::place(&request, &[], Vec::new()).unwrap();
        (request, generated)
    }

    #[tokio::test(start_paused = true)]
    async fn figures_stand_until_the_engine_is_another_they_are_old_or_somebody_asks() {
        let folder = temp_dir("measured").unwrap();
        let (request, generated) = package(folder.path()).await;
        let engine = Arc::new(FakeEngine::new());
        let input = TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape: vec![1] };
        for number in 0..9 {
            let echo =
                FakeModel { inputs: vec![input.clone()], computes: Computes::Echo, ..FakeModel::default() };
            engine.behave(VariantId(u32::MAX - number), echo);
        }
        let profiler = || Profiler::new(Arc::<FakeEngine>::clone(&engine), Config::default(), "cpu:a:1", "c");
        let first = profiler();
        let loads = async |profiler: &Profiler, again: bool| {
            let mut loads = 0;
            let report: Report<'_> = &mut |_, progress| loads += u32::from(progress == Progress::Loading);
            let measured = measure(&request, &generated, (profiler, again), report).await.unwrap();
            assert_eq!(measured.profiles.len(), 1, "{measured:?}");
            loads
        };
        assert_eq!(loads(&first, false).await, 1);
        assert_eq!(loads(&first, false).await, 0, "it is known");
        assert_eq!(loads(&first, true).await, 1, "asked for");
        engine.upgrade();
        let newer = profiler();
        assert_eq!(loads(&newer, false).await, 1, "another version of the engine");
        assert_eq!(loads(&newer, false).await, 0, "it is known");

        let kept = fs::read_dir(request.work().join("measured")).unwrap();
        let old = SystemTime::now() - FRESH - Duration::from_mins(1);
        for kept in kept {
            File::options().write(true).open(kept.unwrap().path()).unwrap().set_modified(old).unwrap();
        }
        assert_eq!(loads(&newer, false).await, 1, "it is old");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_measured_is_no_part_of_what_is_registered_and_is_told_with_its_reason() {
        let folder = temp_dir("measured").unwrap();
        let (request, mut generated) = package(folder.path()).await;
        let mut made = generated.entries[0].clone();
        "echo-int8".clone_into(&mut made.name);
        "int8".clone_into(&mut made.settings.precision);
        generated.entries.push(made);
        let engine = Arc::new(FakeEngine::new());
        let input = TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape: vec![1] };
        let echo =
            FakeModel { inputs: vec![input.clone()], computes: Computes::Echo, ..FakeModel::default() };
        engine.behave(VariantId(u32::MAX), echo.clone());
        let refuses = FakeModel { refuses: Some("no such operator".to_owned()), ..echo };
        engine.behave(VariantId(u32::MAX - 1), refuses);
        let profiler = Profiler::new(engine, Config::default(), "cpu:a:1", "c");
        let measured = measure(&request, &generated, (&profiler, false), &mut |_, _| ()).await.unwrap();
        assert!(measured.failed["echo-int8"].contains("no such operator"), "{measured:?}");
        let marks = super::super::Marks::of(&request, &generated, &measured);
        assert_eq!(marks.left_out.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
        super::super::write(&request, &generated, &measured).unwrap();
        let written = Package::read(&request.out).unwrap();
        let names: Vec<_> = written.models[0].variants.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names, ["echo-fp32"]);
        let told = fs::read_to_string(request.out.join("generated.json")).unwrap();
        assert!(told.contains("no such operator"), "{told}");
    }
}
