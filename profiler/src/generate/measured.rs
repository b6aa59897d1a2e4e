//! What was made, measured where it would serve: through the adapter and a runner, like every other variant.

use super::package::{Entry, Generated};
use super::{Request, at, digest};
use crate::error::Error;
use crate::profile::{Profiler, Report, Subject};
use modelless_types::Profile;
use std::collections::BTreeMap;
use std::fs::{self, File};

/// What is known of variants, by their names.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// Their profiles.
    pub profiles: BTreeMap<String, Profile>,
    /// Those that could not be measured, and why: they stay, unmarked.
    pub failed: BTreeMap<String, String>,
}

/// Measures all of them with the set that calibrated nothing. What was measured before on such a device is not measured again.
pub async fn measure(
    request: &Request,
    generated: &Generated,
    profiler: &Profiler,
    report: Report<'_>,
) -> Result<Measured, Error> {
    let folder = request.work().join("measured");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let set = request.sets.accuracy.pack()?;
    let mut measured = Measured::default();
    for entry in &generated.entries {
        let settings = serde_json::to_string(&entry.settings).expect("it is plain data; this is a bug");
        let adapter = request.notation(&entry.adapter)?;
        let parts = [&entry.sha256, &settings, &adapter, profiler.device_class()].map(str::as_bytes);
        let path = folder.join(format!("{}.json", digest(&[parts.as_slice(), &[set.as_slice()]].concat())));
        if let Some(known) = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
            measured.profiles.insert(entry.name.clone(), known);
            continue;
        }
        match one(request, entry, profiler, &mut *report).await {
            Ok(profile) => {
                let text = serde_json::to_vec(&profile).expect("it is plain data; this is a bug");
                fs::write(&path, text).map_err(at(&path))?;
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
