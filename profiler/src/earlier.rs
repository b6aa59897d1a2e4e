//! What an earlier attempt has measured. Registering measures one variant after the other and stores all of them at the
//! end; where that was cut short, the next attempt takes up what was measured already, with this very program and the same
//! version of the engine's library.

use crate::error::Error;
use crate::profile::{Profiler, Subject};
use modelless_store::{SetArtefact, Store, UnixMicros, sha256_of};
use modelless_types::Profile;
use serde_json::json;
use std::fs;
use std::time::{Duration, SystemTime};

/// What is older is measured anew: the machine may have changed.
pub(crate) const FRESH: Duration = Duration::from_hours(24);

/// Everything that a measurement depends on, as an address. `None` where something of that is not known, such as the address of
/// the labelled set.
pub(crate) async fn key(
    profiler: &Profiler,
    subject: &Subject<'_>,
    artefact: &str,
    (set, measured): (Option<&SetArtefact>, bool),
) -> Option<String> {
    if measured && set.is_none() {
        return None;
    }
    let task = subject.task;
    let engine = profiler.engine_version(subject.settings.engine).await?;
    let all = json!({
        "artefact": artefact,
        "settings": subject.settings,
        "adapter": subject.adapter,
        "task": [task.kind.name(), task.metric.as_str()],
        "labels": task.labels,
        "tensors": [&task.inputs, &task.outputs],
        "set": set,
        "declared": subject.declared,
        "device_class": profiler.device_class(),
        "how": profiler.asked(),
        "engine": engine,
        "program": program()?,
    });
    sha256_of(all.to_string().as_bytes()).ok()
}

/// What tells this program from what it was before it was built or installed anew.
pub(crate) fn program() -> Option<String> {
    let about = fs::metadata("/proc/self/exe").ok()?;
    let built = about.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(format!("{} {} {}", env!("CARGO_PKG_VERSION"), about.len(), built.as_nanos()))
}

/// What was measured under a key lately.
pub(crate) async fn found(store: &dyn Store, key: Option<&str>) -> Result<Option<Profile>, Error> {
    let Some(key) = key else { return Ok(None) };
    let since = SystemTime::now().checked_sub(FRESH).unwrap_or(SystemTime::UNIX_EPOCH);
    let found = store.measured(key, UnixMicros::of(since)).await?;
    if found.is_some() {
        tracing::info!(key, "an earlier attempt has measured this variant");
    }
    Ok(found)
}

/// Keeps it for the next attempt. Nothing depends on that.
pub(crate) async fn keep(store: &dyn Store, key: Option<&str>, profile: &Profile) {
    let Some(key) = key else { return };
    if let Err(error) = store.keep_measured(key, profile, UnixMicros::of(SystemTime::now())).await {
        tracing::warn!(%error, "a measurement is not kept for a second attempt");
    }
}
