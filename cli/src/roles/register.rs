//! What a gateway of a cluster does to register a model: checks what can be checked without running it and stores it.
//! Nodes measure it and offer it then; see `measuring`.

use super::measuring::is_measured_somewhere;
use crate::up::admin::{admin, already, labelled, registration, task_of};
use async_trait::async_trait;
use modelless_gateway::{Admin, AdminError, RegisterRequest};
use modelless_profiler::Registrar;
use modelless_store::{Artefacts, Registered, Store};
use modelless_types::{Engine, TenantId};
use modelless_wire::NodeStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

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
}

impl Registering {
    pub(super) fn new(store: Arc<dyn Store>, artefacts: Artefacts, nodes: Joined) -> Self {
        Self { store, artefacts, nodes }
    }
}

#[async_trait]
impl Admin for Registering {
    async fn register(&self, tenant: TenantId, request: RegisterRequest) -> Result<Registered, AdminError> {
        let nodes = self.nodes.now();
        for variant in &request.variants {
            somebody_runs(&nodes, variant.engine).map_err(AdminError::Unavailable)?;
        }
        // What is there and not measured is promoted once it is, if that was wanted when it came.
        let known = RegisterRequest { promote: false, ..request.clone() };
        if let Some(there) = already(&*self.store, tenant, &known).await? {
            if request.promote && there.variants.iter().all(is_measured_somewhere) {
                return already(&*self.store, tenant, &request).await?.ok_or_else(gone);
            }
            return Ok(there);
        }
        let task = task_of(&*self.store, tenant, &request).await?;
        // Read whole, so that a set which nobody can use is refused here and not at every node.
        labelled(&self.artefacts, &task, &request).await.map_err(not_here)?;
        let within = request.budget_ms.map(Duration::from_millis);
        let model = registration(request)?;
        let registered = Registrar::unmeasured(&*self.store, &self.artefacts, (&task, tenant), model, within);
        registered.await.map_err(admin).map_err(not_here)
    }
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
    use modelless_types::{NodeId, PricePerHour};
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
