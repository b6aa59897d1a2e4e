//! What may be stored. Shared by all stores, so that none accepts what another refuses.

use crate::error::{Error, Result};
use crate::events::NewEvent;
use crate::learnt::{Feedback, StaleProfile};
use crate::records::{
    Evidence, Measuring, NewModel, NewNode, NewSpace, NewTask, NewTransition, NewVariant, Space, SpaceKind,
    UnixMicros,
};
use crate::versions::Signed;
use modelless_types::variant_set::MAX_VARIANTS;
use modelless_types::{Profile, Provenance, Task, TaskKind, TenantId};
use std::collections::BTreeSet;

/// Longest name of anything.
const NAME_MAX: usize = 200;
/// What stands where the name of a task would in the paths of the Open Inference Protocol.
const TASKS_OF_ALL: &str = "stats";
/// Longest document (adapter, plan, description): far above any real one.
const DOCUMENT_MAX: usize = 16 << 20;
/// What is kept of a transition's cause.
const CAUSE_MAX: usize = 2_000;

pub(crate) fn evidence(new: &Evidence) -> Result<()> {
    if let Some(who) = new.promote.as_deref().filter(|who| !who.is_empty()) {
        name("who", who)?;
    }
    let Some(set) = &new.set else { return Ok(()) };
    name("labelled set", &set.name)?;
    sha256("labelled set", &set.artefact)
}

pub(crate) fn measuring(new: &Measuring, now: UnixMicros) -> Result<()> {
    name("device class", &new.device_class)?;
    name("node", &new.node)?;
    text("progress", &new.progress)?;
    new.failed.iter().try_for_each(|why| text("reason", why))?;
    number("time", new.until.0)?;
    number("time", now.0)
}

pub(crate) fn stale(new: &StaleProfile) -> Result<()> {
    name("device class", &new.device_class)?;
    name("node", &new.node)?;
    number("ratio", new.ratio_ppm)?;
    number("time", new.since.0)
}

pub(crate) fn feedback(new: &Feedback) -> Result<()> {
    name("query", &new.query)?;
    number("time", new.answered.0)
}

pub(crate) fn reason(why: &str) -> Result<()> {
    text("reason", why)?;
    if why.trim().is_empty() || why.len() > CAUSE_MAX {
        let why = format!("say why, in 1 to {CAUSE_MAX} bytes: it is kept for whoever asks later");
        return Err(Error::invalid("reason", why));
    }
    Ok(())
}

pub(crate) fn holder(name_of_node: &str, instance: u64, place: &str) -> Result<()> {
    name("node", name_of_node)?;
    name("place", place)?;
    number("instance", instance)
}

pub(crate) fn task(new: &NewTask) -> Result<NewSpace> {
    plain_name("task", &new.name)?;
    if new.name == TASKS_OF_ALL {
        let why = format!(
            "its name {TASKS_OF_ALL:?} is taken: /v2/models/{TASKS_OF_ALL} tells what all tasks did; give it another"
        );
        return Err(Error::invalid("task", why));
    }
    name("metric", &new.metric)?;
    text("description", &new.description)?;
    new.labels.iter().try_for_each(|label| text("label", label))?;
    for tensor in new.inputs.iter().chain(&new.outputs) {
        name("tensor", &tensor.name)?;
    }
    // Labels may repeat: those of ImageNet do.
    match new.kind {
        TaskKind::ImageClassification | TaskKind::TextClassification if new.labels.is_empty() => {
            return Err(Error::invalid("task", "classification needs labels"));
        }
        TaskKind::Tensor if new.inputs.is_empty() || new.outputs.is_empty() => {
            return Err(Error::invalid("task", "a tensor task needs at least one input and one output"));
        }
        TaskKind::FeatureExtraction
            if !new.space.as_ref().is_some_and(|space| matches!(space.kind, SpaceKind::Embedding { .. })) =>
        {
            return Err(Error::invalid(
                "task",
                "vectors can only be compared inside one output space: give the one that is answered in by default, a \
                 name and a dimension",
            ));
        }
        TaskKind::ImageClassification
        | TaskKind::TextClassification
        | TaskKind::FeatureExtraction
        | TaskKind::Tensor => {}
    }
    let space = new.space.clone().unwrap_or_else(|| NewSpace {
        name: new.name.clone(),
        kind: match new.kind {
            TaskKind::ImageClassification | TaskKind::TextClassification => SpaceKind::labels(&new.labels),
            // Of embeddings it was given, or nothing comes of it.
            TaskKind::FeatureExtraction => SpaceKind::Embedding { dimension: 0 },
            TaskKind::Tensor => SpaceKind::tensor(&new.outputs),
        },
    });
    self::space(&space)?;
    Ok(space)
}

fn space(new: &NewSpace) -> Result<()> {
    name("output space", &new.name)?;
    match &new.kind {
        SpaceKind::Labels { hash } | SpaceKind::Tensor { hash } => sha256("output space", hash),
        SpaceKind::Embedding { dimension: 0 } => Err(Error::invalid("output space", "its dimension is 0")),
        SpaceKind::Embedding { .. } => Ok(()),
    }
}

/// A space of that name exists: it must be the same.
pub(crate) fn same_space(known: &Space, new: &NewSpace) -> Result<()> {
    if known.kind == new.kind {
        return Ok(());
    }
    Err(Error::invalid(
        "output space",
        format!(
            "a space named {:?} exists and answers in it would not be interchangeable with these ({} there, {} here, \
             or other labels or sizes); give this one another name",
            new.name,
            known.kind.name(),
            new.kind.name()
        ),
    ))
}

pub(crate) fn model(new: &NewModel) -> Result<()> {
    name("model", &new.name)?;
    text("architecture", &new.architecture)?;
    text("licence", &new.licence)?;
    if !new.owner.is_empty() {
        name("owner", &new.owner)?;
    }
    signed(&new.by)?;
    json("adapter", &new.adapter)?;
    if let Some(new) = &new.space {
        space(new)?;
    }
    let mut names = BTreeSet::new();
    for new in &new.variants {
        variant(new)?;
        if !names.insert(&new.name) {
            return Err(Error::exists("variant", &new.name));
        }
    }
    Ok(())
}

pub(crate) fn signed(by: &Signed) -> Result<()> {
    if !by.who.is_empty() {
        name("who", &by.who)?;
    }
    number("time", by.at.0)
}

pub(crate) fn measured(key: &str, known: &Profile, at: UnixMicros) -> Result<()> {
    sha256("key", key)?;
    profile(known)?;
    number("time", at.0)
}

/// Whether a model of this tenant may be registered for the task.
pub(crate) fn owner(task: &Task, tenant: TenantId) -> Result<()> {
    // To others the task must look as if it were not there.
    if task.tenant == tenant { Ok(()) } else { Err(Error::not_found("task", task.id)) }
}

pub(crate) fn room(task: &str, used: usize, wanted: usize) -> Result<()> {
    let free = MAX_VARIANTS.saturating_sub(used);
    if wanted <= free {
        return Ok(());
    }
    Err(Error::TooManyVariants { task: task.to_owned(), wanted, free, limit: MAX_VARIANTS })
}

pub(crate) fn variant(new: &NewVariant) -> Result<()> {
    name("variant", &new.name)?;
    name("precision", &new.settings.precision)?;
    sha256("variant", &new.artefact)?;
    number("artefact size", new.artefact_bytes.0)?;
    if new.settings.threads == 0 || new.settings.max_batch == 0 {
        return Err(Error::invalid("variant", "threads and largest batch must be at least 1"));
    }
    let mut classes = BTreeSet::new();
    for known in &new.profiles {
        profile(known)?;
        if !classes.insert(&known.device_class) {
            return Err(Error::invalid("variant", format!("two profiles for {:?}", known.device_class)));
        }
    }
    Ok(())
}

pub(crate) fn profile(new: &Profile) -> Result<()> {
    let refuse = |why: &str| Err(Error::invalid("profile", why));
    name("device class", &new.device_class)?;
    if new.latency.is_empty() {
        return refuse("it has no latency at all; give at least one batch size");
    }
    if !new.latency.is_sorted_by(|a, b| a.batch < b.batch) || new.latency[0].batch == 0 {
        return refuse("its batch sizes must rise from at least 1");
    }
    let figure = |us: f64| us.is_finite() && us >= 0.0;
    let batches = new.latency.iter().flat_map(|point| [point.mean_us, point.var_us2, point.p99_us]);
    let stages = [&new.decode, &new.prepare].into_iter().flat_map(|stage| [stage.mean_us, stage.var_us2]);
    if !batches.chain(stages).all(figure) {
        return refuse("a time is negative or not a number");
    }
    let shares = new.detail.unsteady.iter().flat_map(|it| [it.sizes, it.same_work, it.stolen]);
    if !shares.into_iter().all(figure) {
        return refuse("how unsteady its machine was is negative or not a number");
    }
    if new.accuracy.provenance == Provenance::Measured && new.accuracy.samples == 0 {
        return refuse("its accuracy is said to be measured, but on no items at all");
    }
    for accuracy in std::iter::once(&new.accuracy).chain(&new.also) {
        text("labelled set", &accuracy.set)?;
        text("command", &accuracy.command)?;
        text("device class", &accuracy.device_class)?;
        if accuracy.low > accuracy.value || accuracy.value > accuracy.high {
            return refuse("an accuracy lies outside its own interval");
        }
    }
    Ok(())
}

pub(crate) fn node(new: &NewNode, at: UnixMicros) -> Result<()> {
    name("node", &new.name)?;
    name("pool", &new.pool)?;
    name("zone", &new.zone)?;
    name("device class", &new.device_class)?;
    number("memory", new.memory.0)?;
    number("price", new.price.0)?;
    number("time", at.0)
}

/// Makes the texts storable instead of refusing them: what a crashing engine said must not keep its crash from
/// being recorded.
pub(crate) fn transition(mut new: NewTransition) -> Result<NewTransition> {
    number("time", new.at.0)?;
    [&mut new.cause, &mut new.who].into_iter().for_each(storable);
    Ok(new)
}

/// The same.
pub(crate) fn event(mut new: NewEvent) -> Result<NewEvent> {
    number("time", new.at.0)?;
    [&mut new.what, &mut new.cause, &mut new.who].into_iter().for_each(storable);
    Ok(new)
}

/// Makes a text storable.
pub(crate) fn storable(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
    text.truncate(text.floor_char_boundary(CAUSE_MAX));
}

/// Valid JSON.
pub(crate) fn json(what: &'static str, document: &str) -> Result<()> {
    text(what, document)?;
    serde_json::from_str::<serde::de::IgnoredAny>(document)
        .map(|_| ())
        .map_err(|error| Error::invalid(what, format!("it is not JSON: {error}")))
}

/// Fits in the signed column.
pub(crate) fn number(what: &'static str, value: u64) -> Result<()> {
    i64::try_from(value).map(|_| ()).map_err(|_| Error::invalid(what, format!("{value} is too large")))
}

pub(crate) fn name(what: &'static str, name: &str) -> Result<()> {
    let why = if name.is_empty() {
        "its name is empty".to_owned()
    } else if name.chars().count() > NAME_MAX {
        format!("its name is longer than {NAME_MAX} characters")
    } else if name.chars().any(char::is_control) || name.trim() != name {
        format!("its name {name:?} has control characters or spaces at an end")
    } else {
        return Ok(());
    };
    Err(Error::invalid(what, why))
}

/// A name that stands in paths, and beside others in metrics, where nothing else may be read into it.
pub(crate) fn plain_name(what: &'static str, plain: &str) -> Result<()> {
    name(what, plain)?;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if plain.chars().all(fits) {
        return Ok(());
    }
    let why = format!("its name {plain:?} may have only lower-case letters, digits, `-` and `_`");
    Err(Error::invalid(what, why))
}

pub(crate) fn sha256(what: &'static str, hash: &str) -> Result<()> {
    if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Ok(());
    }
    Err(Error::invalid(
        what,
        format!("{:?} is not a sha256 of 64 lower-case hexadecimal digits", shorten(hash)),
    ))
}

fn text(what: &'static str, text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid(what, "it contains a zero byte")); // Postgres cannot keep one
    }
    if text.len() > DOCUMENT_MAX {
        return Err(Error::invalid(what, format!("it is longer than {DOCUMENT_MAX} bytes")));
    }
    Ok(())
}

fn shorten(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}
