//! Profiles in full, to be shown, kept elsewhere and brought in.

use super::{Answer, FromApp, Params};
use crate::access::{Caller, Detail};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::profiles::{ProfileEntry, ProfileFile, Through};
use crate::suggest::{excerpt, suggest};
use crate::view::{TaskView, VariantView, View};
use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use modelless_store::Error as StoreError;
use modelless_types::VariantSettings;
use serde_json::{Value, json};

pub(super) async fn export(State(app): FromApp, caller: Caller, uri: Uri) -> Answer {
    // All of them are as much work here as a query, if not more.
    caller.asks(app.core.driver.clock().now())?;
    let mut params = Params::of(&uri)?;
    let (task, variant, class) = (params.take("task"), params.take("variant"), params.take("device_class"));
    params.finish(&["task", "variant", "device_class"])?;
    let view = app.core.view_of(&caller);
    let mut tasks: Vec<&TaskView> = match task {
        Some(name) => vec![view.task(&name)?],
        None => view.tasks.values().collect(),
    };
    tasks.sort_by(|a, b| a.task.name.cmp(&b.task.name));
    let all = || tasks.iter().flat_map(|task| task.variants.iter().map(move |variant| (*task, variant)));
    if let Some(name) = &variant
        && !all().any(|(_, known)| known.variant.name == *name)
    {
        let near = suggest(name, all().map(|(_, known)| known.variant.name.as_str()));
        let message = format!("there is no variant {}{near}", excerpt(name));
        return Err(ApiError::not_found("unknown_variant", message));
    }
    let wanted = |(_, known): &(&TaskView, &VariantView)| {
        variant.as_ref().is_none_or(|name| known.variant.name == *name)
    };
    let entries = all().filter(wanted).flat_map(|(task, known)| {
        let profiles = known.variant.profiles.iter();
        let profiles = profiles.filter(|profile| class.as_ref().is_none_or(|c| profile.device_class == *c));
        profiles.map(move |profile| ProfileEntry {
            task: task.task.name.clone(),
            model: known.model.name.clone(),
            model_version: known.model.version,
            variant: known.variant.name.clone(),
            artefact_sha256: known.variant.artefact.clone(),
            settings: Some(known.variant.settings.clone()),
            through: Through::of(&known.model.adapter, &task.task.labels),
            profile: profile.clone(),
        })
    });
    Ok(json_response(StatusCode::OK, &json!(ProfileFile::new(entries.collect()))))
}

pub(super) async fn import(State(app): FromApp, caller: Caller, detail: Detail, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let mut params = Params::of(&head.uri)?;
    let replace = params.take_flag("replace")?;
    params.finish(&["replace"])?;
    let file: ProfileFile = body::read_json(&app.core, &head, body).await?;
    file.check().map_err(ApiError::malformed)?;
    let view = app.core.view_of(&caller);
    let (mut imported, mut left_out) = (Vec::new(), Vec::<Value>::new());
    for entry in file.profiles {
        let named = json!({
            "task": entry.task, "variant": entry.variant, "device_class": entry.profile.device_class,
        });
        let mut leave = |why: String| {
            let mut named = named.clone();
            named["why"] = json!(why);
            left_out.push(named);
        };
        let variant = match fitting(&view, &entry, replace) {
            Ok(variant) => variant.variant.id,
            Err(why) => {
                leave(why);
                continue;
            }
        };
        match app.store.put_profile(variant, entry.profile).await {
            Ok(()) => imported.push(named),
            Err(error @ (StoreError::Invalid { .. } | StoreError::NotFound { .. })) => {
                leave(error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !imported.is_empty() {
        app.catalog_changed().await;
    }
    detail.say(format!("{} imported, {} left out", imported.len(), left_out.len()));
    Ok(json_response(StatusCode::OK, &json!({"imported": imported, "left_out": left_out})))
}

/// The variant of ours that a profile is of; or why there is none that it may be stored with.
fn fitting<'a>(view: &'a View, entry: &ProfileEntry, replace: bool) -> Result<&'a VariantView, String> {
    let task =
        view.tasks.get(&entry.task).ok_or_else(|| format!("there is no task {}", excerpt(&entry.task)))?;
    let task = task.owned().map_err(|error| error.message)?;
    let known = task.variants.iter().find(|known| known.variant.name == entry.variant);
    let known = known.ok_or_else(|| format!("the task has no variant {}", excerpt(&entry.variant)))?;
    let model = &known.model;
    // An older export does not say.
    if !entry.model.is_empty() && (&entry.model, entry.model_version) != (&model.name, model.version) {
        return Err(format!(
            "it is of {} version {}, and here the variant is of {} version {}",
            excerpt(&entry.model),
            entry.model_version,
            model.name,
            model.version
        ));
    }
    if known.variant.artefact != entry.artefact_sha256 {
        return Err("its artefact is another one here".to_owned());
    }
    let of = |settings: &VariantSettings| {
        let VariantSettings { engine, precision, threads, optimisation, processor, .. } = settings;
        (*engine, precision.clone(), *threads, *optimisation, *processor)
    };
    if entry.settings.as_ref().is_some_and(|settings| of(settings) != of(&known.variant.settings)) {
        return Err("it is run in another way here (engine, precision, threads, optimisation or processor)"
            .to_owned());
    }
    if let Some(why) = entry.through.unlike(&Through::of(&model.adapter, &task.task.labels)) {
        return Err(why);
    }
    if entry.profile.is_estimated() {
        return Err("it is an estimate; only what was measured is taken in".to_owned());
    }
    let there = known.variant.profile_on(&entry.profile.device_class);
    if !replace && there.is_some_and(|there| !there.is_estimated()) {
        return Err(
            "it was measured on this device class already; `replace` puts this one in its place".to_owned()
        );
    }
    Ok(known)
}
