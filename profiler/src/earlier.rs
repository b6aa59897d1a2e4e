//! What an earlier attempt has measured. Registering measures one variant after the other and stores all of them at the
//! end; where that was cut short, the next attempt takes up what was measured already, with this very program and the same
//! version of the engine's library.

use crate::error::Error;
use crate::profile::{Config, Profiler, Subject};
use modelless_store::{SetArtefact, Store, UnixMicros, sha256_of};
use modelless_types::Profile;
use serde_json::json;
use std::fs;
use std::time::{Duration, SystemTime};

/// What is older is measured anew: the machine may have changed.
pub(crate) const FRESH: Duration = Duration::from_hours(24);

/// Where measurements are kept.
pub(crate) struct Keys {
    /// Everything that a whole measurement depends on: it is the same whatever time there was for it.
    whole: String,
    /// What a coarse one depends on: the time that was asked for as well.
    hurried: String,
}

/// Where the measurements of a variant are kept. `None` where something of that is not known, such as the address of
/// the labelled set.
pub(crate) async fn key(
    profiler: &Profiler,
    subject: &Subject<'_>,
    artefact: &str,
    (set, measured): (Option<&SetArtefact>, bool),
) -> Option<Keys> {
    if measured && set.is_none() {
        return None;
    }
    let task = subject.task;
    let engine = profiler.engine_version(subject.settings.engine).await?;

    let mut all = json!({
        "artefact": artefact,
        "settings": subject.settings,
        "adapter": subject.adapter,
        "task": [task.kind.name(), task.metric.as_str()],
        "labels": task.labels,
        "tensors": [&task.inputs, &task.outputs],
        "set": set,
        "declared": subject.declared,
        "device_class": profiler.device_class(),
        "how": Config { budget_ms: None, ..profiler.asked() },
        "engine": engine,
        "program": program()?,
    });
    let whole = sha256_of(all.to_string().as_bytes()).ok()?;
    all["how"] = json!(profiler.asked());
    let hurried = sha256_of(all.to_string().as_bytes()).ok()?;
    Some(Keys { whole, hurried })
}

/// What tells this program from what it was before it was built or installed anew.
pub(crate) fn program() -> Option<String> {
    let about = fs::metadata("/proc/self/exe").ok()?;
    let built = about.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(format!("{} {} {}", env!("CARGO_PKG_VERSION"), about.len(), built.as_nanos()))
}

/// What was measured lately: whole, or else in as much time.
pub(crate) async fn found(store: &dyn Store, keys: Option<&Keys>) -> Result<Option<Profile>, Error> {
    let Some(Keys { whole, hurried }) = keys else { return Ok(None) };
    let since = UnixMicros::of(SystemTime::now().checked_sub(FRESH).unwrap_or(SystemTime::UNIX_EPOCH));
    for key in [whole, hurried] {
        let found = store.measured(key, since).await?;
        if found.is_some() {
            tracing::info!(key, "an earlier attempt has measured this variant");
            return Ok(found);
        }
    }
    Ok(None)
}

/// Keeps it for the next attempt. Nothing depends on that.
pub(crate) async fn keep(store: &dyn Store, keys: Option<&Keys>, profile: &Profile) {
    let Some(Keys { whole, hurried }) = keys else { return };
    let key = if profile.is_coarse() { hurried } else { whole };
    if let Err(error) = store.keep_measured(key, profile, UnixMicros::of(SystemTime::now())).await {
        tracing::warn!(%error, "a measurement is not kept for a second attempt");
    }
}
