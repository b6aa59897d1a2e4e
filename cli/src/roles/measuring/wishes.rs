//! What somebody wanted of a registration that is seen to when it is measured: how long measuring may take, and that the version is the
//! default then.

use modelless_profiler::Profiler;
use modelless_store::{Catalog, Evidence, UnixMicros, Wish};
use modelless_types::{Model, Variant};
use std::time::Duration;
use tokio::time::Instant;

/// Whether it was measured on any class.
pub(crate) fn is_measured_somewhere(variant: &Variant) -> bool {
    variant.profiles.iter().any(|profile| !profile.is_estimated())
}

/// What is to become of the wish to be the default, of versions of which somebody may have it: granted once all variants are measured,
/// overtaken where a later one is the default. One that answers in another output space than its task's is promoted by hand or not at all, as over HTTP.
pub(super) fn decided(catalog: &Catalog, now: UnixMicros) -> Vec<(&Model, Wish)> {
    let defaults = catalog.defaults();
    let decide = |model: &Model| {
        let same = |other: &&Model| {
            (other.task, other.tenant, &other.name) == (model.task, model.tenant, &model.name)
        };
        let mut others = catalog.models.iter().filter(same);
        if others.any(|other| other.id > model.id && defaults.contains(&other.id)) {
            return Some(Wish::Overtaken);
        }
        let task = catalog.tasks.iter().find(|task| task.id == model.task)?;
        let mut variants = catalog.variants_of(model.id).peekable();
        let measured = variants.peek().is_some() && variants.all(is_measured_somewhere);
        (measured && model.space == task.default_space).then_some(Wish::Granted(now))
    };
    let candidates = catalog.models.iter().filter(|model| model.promoted == 0);
    candidates.filter_map(|model| Some((model, decide(model)?))).collect()
}

/// With an equal share of what all variants of a model may take.
pub(super) fn within(profiler: Profiler, evidence: &Evidence, variants: usize) -> Profiler {
    match evidence.within_ms.map(Duration::from_millis) {
        Some(all) => profiler.within(Some(all)).share(Instant::now(), variants),
        None => profiler,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{
        AccuracyRule, Ahead, Bytes, DeclaredRule, Engine, Goals, LiveRule, ModelId, Provenance, SpaceId,
        Task, TaskId, TaskKind, TenantId, VariantId, VariantSettings,
    };

    fn model(id: u32, version: u32, promoted: u64) -> Model {
        Model {
            id: ModelId(id),
            task: TaskId(1),
            tenant: TenantId::DEFAULT,
            name: "m".to_owned(),
            version,
            architecture: String::new(),
            licence: String::new(),
            owner: String::new(),
            promoted,
            space: SpaceId(1),
            adapter: String::new(),
        }
    }

    fn variant(id: u32, model: u32, measured: Option<Provenance>) -> Variant {
        let profile = |provenance| {
            let mut profile = crate::client::profile::file::tests::entry("x").profile;
            profile.latency_provenance = provenance;
            profile
        };
        Variant {
            id: VariantId(id),
            model: ModelId(model),
            ordinal: 0,
            name: format!("v{id}"),
            settings: VariantSettings::new(Engine::Onnx, "fp32", 8),
            artefact: "ab".repeat(32),
            artefact_bytes: Bytes(1),
            profiles: measured.map(profile).into_iter().collect(),
        }
    }

    #[test]
    fn a_version_is_promoted_once_all_of_it_is_measured_and_not_after_a_later_one() {
        let (measured, estimated) = (Some(Provenance::Measured), Some(Provenance::Estimated));
        let task = Task {
            id: TaskId(1),
            name: "t".to_owned(),
            tenant: TenantId::DEFAULT,
            kind: TaskKind::Tensor,
            metric: String::new(),
            accuracy_rule: AccuracyRule::default(),
            live_accuracy: LiveRule::default(),
            declared_accuracy: DeclaredRule::default(),
            labels: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            default_space: SpaceId(1),
            defaults: Goals::default(),
            batching: None,
            cache: modelless_types::CacheFor::OFF,
            keep: modelless_types::KeepFor::ALWAYS,
            ahead: Ahead::default(),
            description: String::new(),
        };
        let decide = |models: Vec<Model>, variants: Vec<Variant>| {
            let catalog = Catalog { tasks: vec![task.clone()], models, variants, ..Catalog::default() };
            let decided = decided(&catalog, UnixMicros(7)).into_iter();
            decided.map(|(model, wish)| (model.version, wish)).collect::<Vec<_>>()
        };
        let two = || vec![model(1, 1, 4), model(2, 2, 0)];
        let of = |second, third| vec![variant(1, 1, measured), variant(2, 2, second), variant(3, 2, third)];
        assert_eq!(decide(two(), of(measured, measured)), [(2, Wish::Granted(UnixMicros(7)))]);
        assert_eq!(decide(two(), of(measured, estimated)), []);
        assert_eq!(decide(two(), of(measured, None)), []);
        assert_eq!(decide(two(), vec![variant(1, 1, measured)]), [], "it has nothing to answer with");
        let elsewhere = vec![model(1, 1, 4), Model { space: SpaceId(2), ..model(2, 2, 0) }];
        assert_eq!(
            decide(elsewhere, of(measured, measured)),
            [],
            "nobody who pins nothing could be answered"
        );
        let later = vec![model(1, 1, 4), model(2, 2, 0), model(3, 3, 7)];
        assert_eq!(decide(later, of(measured, measured)), [(2, Wish::Overtaken)]);
    }
}
