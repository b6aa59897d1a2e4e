//! What somebody wanted of a registration that is seen to when it is measured: how long measuring may take, and that the version is the
//! default then.

use modelless_profiler::Profiler;
use modelless_store::{Catalog, Evidence};
use modelless_types::{Model, ModelId, Variant};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Whether it was measured on any class.
pub(crate) fn is_measured_somewhere(variant: &Variant) -> bool {
    variant.profiles.iter().any(|profile| !profile.is_estimated())
}

/// Versions that could become the default now that all their variants are measured, if that is wanted of them: those that never were it.
/// Not where a later one is: whoever made that one the default has said more lately what is to answer.
pub(super) fn ripe(catalog: &Catalog) -> Vec<&Model> {
    let defaults = catalog.defaults();
    let is_ripe = |model: &&Model| {
        let mut variants = catalog.variants_of(model.id).peekable();
        let same = |other: &&Model| {
            (other.task, other.tenant, &other.name) == (model.task, model.tenant, &model.name)
        };
        let later = catalog
            .models
            .iter()
            .filter(same)
            .any(|other| other.id > model.id && defaults.contains(&other.id));
        model.promoted == 0 && !later && variants.peek().is_some() && variants.all(is_measured_somewhere)
    };
    catalog.models.iter().filter(is_ripe).collect()
}

/// Those of whom nobody wants it, so that they are asked about once.
#[derive(Default)]
pub(super) struct Unwished(BTreeSet<ModelId>);

impl Unwished {
    pub(super) fn holds(&self, model: ModelId) -> bool {
        self.0.contains(&model)
    }

    pub(super) fn add(&mut self, model: ModelId) {
        self.0.insert(model);
    }

    /// Those that are gone need no place any longer.
    pub(super) fn keep(&mut self, catalog: &Catalog) {
        self.0.retain(|known| catalog.models.iter().any(|model| model.id == *known));
    }
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
    use modelless_types::{Bytes, Engine, Provenance, SpaceId, TaskId, TenantId, VariantId, VariantSettings};

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
    fn a_version_is_ripe_once_all_of_it_is_measured_and_never_twice_nor_after_a_later_one() {
        let (measured, estimated) = (Some(Provenance::Measured), Some(Provenance::Estimated));
        let versions = |models: Vec<Model>, variants: Vec<Variant>| {
            let catalog = Catalog { models, variants, ..Catalog::default() };
            ripe(&catalog).iter().map(|model| model.version).collect::<Vec<_>>()
        };
        let two = || vec![model(1, 1, 4), model(2, 2, 0)];
        let of = |second, third| vec![variant(1, 1, measured), variant(2, 2, second), variant(3, 2, third)];
        assert_eq!(versions(two(), of(measured, measured)), [2]);
        assert!(versions(two(), of(measured, estimated)).is_empty());
        assert!(versions(two(), of(measured, None)).is_empty());
        assert!(versions(two(), vec![variant(1, 1, measured)]).is_empty(), "it has nothing to answer with");
        let before = vec![model(1, 1, 9), model(2, 2, 5)];
        assert!(
            versions(before, of(measured, measured)).is_empty(),
            "it was the default, and was taken back"
        );
        let later = vec![model(1, 1, 4), model(2, 2, 0), model(3, 3, 7)];
        assert!(versions(later, of(measured, measured)).is_empty(), "a later one is the default");
    }
}
