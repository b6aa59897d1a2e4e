//! What a gateway of a cluster does to register a model: checks what can be checked without running it and stores it.
//! Nodes measure it and offer it then; see `measuring`.

use super::measuring::is_measured_somewhere;
use crate::up::admin::{admin, already, labelled, registration, task_of};
use async_trait::async_trait;
use modelless_gateway::{Admin, AdminError, RegisterRequest};
use modelless_profiler::Registrar;
use modelless_store::{Artefacts, Catalog, Measuring, Registered, Signed, Store, UnixMicros, Wish};
use modelless_types::{Engine, Model, ModelId, TenantId, Variant};
use modelless_wire::NodeStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{Semaphore, watch};

/// The nodes that this gateway is connected to.
#[derive(Clone, Default)]
pub(super) struct Joined(Arc<Mutex<Vec<watch::Receiver<NodeStatus>>>>);

impl Joined {
    pub(super) fn add(&self, status: watch::Receiver<NodeStatus>) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|node| node.has_changed().is_ok()); // those whose connection ended are told by nobody
        nodes.push(status);
    }

    /// Those that are there and stay.
    fn now(&self) -> Vec<NodeStatus> {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|node| node.has_changed().is_ok());
        nodes.iter().map(|node| node.borrow().clone()).filter(|node| !node.draining).collect()
    }
}

/// Registers what is sent to a gateway of a cluster.
pub(super) struct Registering {
    store: Arc<dyn Store>,
    artefacts: Artefacts,
    nodes: Joined,
    /// Who may look into artefacts.
    looks: Semaphore,
}

impl Registering {
    pub(super) fn new(store: Arc<dyn Store>, artefacts: Artefacts, nodes: Joined) -> Self {
        Self { store, artefacts, nodes, looks: Semaphore::new(1) }
    }
}

#[async_trait]
impl Admin for Registering {
    async fn register(&self, tenant: TenantId, request: RegisterRequest) -> Result<Registered, AdminError> {
        let nodes = self.nodes.now();
        for variant in &request.variants {
            somebody_runs(&nodes, variant.engine).map_err(AdminError::Unavailable)?;
        }
        // What is there and not measured yet is promoted once it is.
        let known = RegisterRequest { promote: false, ..request.clone() };
        if let Some(there) = already(&*self.store, tenant, &known).await? {
            return match (request.promote, there.model.promoted) {
                (false, _) => Ok(there),
                (true, 0) => {
                    self.store.wish(there.model.id, Wish::Made(request.by)).await?;
                    Ok(there)
                }
                // It was the default before.
                (true, _) => already(&*self.store, tenant, &request).await?.ok_or_else(gone),
            };
        }
        if let Some(failed) = self.failed(tenant, &request).await? {
            let by = Signed { who: request.by.clone(), at: UnixMicros::of(SystemTime::now()) };
            self.store.remove_model(failed, true, by).await?;
            tracing::info!(
                model = request.name,
                version = request.version,
                "registered anew: no node could measure it as it was"
            );
        }
        let task = task_of(&*self.store, tenant, &request).await?;
        // Read whole, so that a set which nobody can use is refused here and not at every node.
        labelled(&self.artefacts, &task, &request).await.map_err(not_here)?;
        let within = request.budget_ms.map(Duration::from_millis);
        let model = registration(request)?;
        // Files are read whole to be looked into: not many of them at a time.
        let _looks =
            self.looks.acquire().await.map_err(|error| AdminError::Unavailable(error.to_string()))?;
        let registered = Registrar::unmeasured(&*self.store, &self.artefacts, (&task, tenant), model, within);
        registered.await.map_err(admin).map_err(not_here)
    }
}

impl Registering {
    /// What stands under this name and version, if nodes tried to measure it and none could: it has never answered anything, and whoever
    /// sends it again has mended it.
    async fn failed(
        &self,
        tenant: TenantId,
        request: &RegisterRequest,
    ) -> Result<Option<ModelId>, AdminError> {
        let catalog = self.store.catalog().await?;
        let Some(task) = catalog.task_named(tenant, &request.task) else { return Ok(None) };
        let named = |model: &&Model| model.name == request.name && model.version == request.version;
        let Some(model) = catalog.models_of(task.id).find(named) else { return Ok(None) };
        Ok(has_failed(&catalog, model.id, &self.store.measurings().await?).then_some(model.id))
    }
}

fn has_failed(catalog: &Catalog, model: ModelId, measurings: &[Measuring]) -> bool {
    let failed = |variant: &Variant| {
        measurings.iter().any(|tried| tried.variant == variant.id && tried.failed.is_some())
    };
    !catalog.variants_of(model).any(is_measured_somewhere) && catalog.variants_of(model).any(failed)
}

/// Somebody removed it just now.
fn gone() -> AdminError {
    AdminError::Invalid("it was removed while it was registered again; register it once more".to_owned())
}

/// Why nobody could measure a variant of this engine.
fn somebody_runs(nodes: &[NodeStatus], engine: Engine) -> Result<(), String> {
    let Some(first) = nodes.first() else {
        let why = "no executor is connected to this gateway, so nobody could measure the model; start one with \
                   `modelless executor` and register again (the model was not stored)";
        return Err(why.to_owned());
    };
    if nodes.iter().any(|node| node.without(engine).is_none()) {
        return Ok(());
    }
    let reason = first.without(engine).unwrap_or_default();
    Err(format!(
        "no executor that is connected to this gateway can run the engine {engine}: {}: {reason} (the model was not stored)",
        first.name
    ))
}

/// An artefact that is not at this gateway may be at another.
fn not_here(error: AdminError) -> AdminError {
    match error {
        AdminError::Store(modelless_store::Error::NotFound { what: "artefact", name }) => {
            AdminError::Invalid(format!(
                "the artefact {name} is not at this gateway; upload it here first (PUT /v1/artefacts)"
            ))
        }
        other @ (AdminError::Invalid(_) | AdminError::Store(_) | AdminError::Unavailable(_)) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::Moments;
    use modelless_decision::route::NodeInfo;
    use modelless_types::{Bytes, NodeId, PricePerHour, VariantId, VariantSettings};
    use modelless_wire::EngineStatus;

    fn node(name: &str, torch: Option<&str>) -> NodeStatus {
        let info = NodeInfo { id: NodeId(1), rtt: Moments::ZERO, price: PricePerHour(1), offers: Vec::new() };
        let unavailable = torch.map(str::to_owned);
        NodeStatus {
            engines: vec![EngineStatus { engine: Engine::Torch, version: None, unavailable }],
            ..NodeStatus::idle(info, name, "cpu:a:1")
        }
    }

    #[test]
    fn a_model_that_nobody_could_measure_is_refused_with_the_reason() {
        assert!(somebody_runs(&[], Engine::Onnx).unwrap_err().contains("no executor"));
        let without = [node("one", Some("libtorch is missing")), node("two", Some("no"))];
        let why = somebody_runs(&without, Engine::Torch).unwrap_err();
        assert!(why.contains("torch") && why.contains("one: libtorch is missing"), "{why}");
        assert!(somebody_runs(&[node("one", Some("no")), node("two", None)], Engine::Torch).is_ok());
    }

    #[test]
    fn only_what_nodes_tried_and_none_could_measure_has_failed() {
        let variant = |id: u32, measured: bool| Variant {
            id: VariantId(id),
            model: ModelId(1),
            ordinal: 0,
            name: format!("v{id}"),
            settings: VariantSettings::new(Engine::Onnx, "fp32", 8),
            artefact: "ab".repeat(32),
            artefact_bytes: Bytes(1),
            profiles: if measured {
                vec![crate::client::profile::file::tests::entry("x").profile]
            } else {
                Vec::new()
            },
        };
        let tried = |id: u32, failed: Option<&str>| Measuring {
            variant: VariantId(id),
            device_class: "cpu:a:1".to_owned(),
            node: "one".to_owned(),
            until: UnixMicros(100),
            progress: String::new(),
            failed: failed.map(str::to_owned),
            attempts: 1,
        };
        let of = |variants: Vec<Variant>, tried: &[Measuring]| {
            has_failed(&Catalog { variants, ..Catalog::default() }, ModelId(1), tried)
        };
        let two = || vec![variant(1, false), variant(2, false)];
        assert!(of(two(), &[tried(1, None), tried(2, Some("no such operator"))]));
        assert!(!of(two(), &[tried(1, None), tried(3, Some("another model's"))]), "it is being measured");
        assert!(!of(vec![variant(1, true), variant(2, false)], &[tried(2, Some("broken"))]), "it can answer");
        assert!(!of(two(), &[]));
    }

    #[test]
    fn a_node_that_is_gone_or_drains_is_not_counted() {
        let joined = Joined::default();
        let (sender, status) = watch::channel(node("one", None));
        joined.add(status);
        assert_eq!(joined.now().len(), 1);
        sender.send_modify(|status| status.draining = true);
        assert_eq!(joined.now().len(), 0);
        sender.send_modify(|status| status.draining = false);
        assert_eq!(joined.now().len(), 1);
        drop(sender);
        assert_eq!(joined.now().len(), 0);
    }
}
