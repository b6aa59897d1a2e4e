//! Loading and unloading by hand. What is in memory is the platform's business: it loads what queries need and evicts for them.
//! Loading beforehand spares the first query its wait; unloading makes room for something else on the machine now.

use super::about;
use super::request::Value;
use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use crate::suggest::excerpt;
use crate::view::{TaskView, VariantView};
use futures_util::future::join_all;
use modelless_decision::route::{Offer, Ready};
use modelless_types::{DeviceIx, ReplicaState, VariantId};
use modelless_wire::{NodeStatus, ReplicaStatus};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// How long a load, or what is still to be finished before an unload, is waited for: clients wait for a minute, and are to be told why.
const WITHIN: Duration = Duration::from_secs(50);

/// Has a node load a variant of a task, and waits until it has: the one with the number given as the parameter `version`, else the
/// most accurate of those that answer without a pin.
pub(crate) async fn load(
    core: &Core,
    caller: &Caller,
    name: &str,
    parameters: &[(String, Value)],
) -> Result<(), ApiError> {
    // It takes a device's time as a query does, and others may have to make room for it.
    caller.has_device_time(core.driver.clock().now())?;
    let view = core.view_of(caller);
    let task = view.task(name)?.owned()?;
    let mut asked = None;
    for (name, value) in parameters {
        if let ("version", Value::Text(version) | Value::Number(version)) = (name.as_str(), value) {
            asked = Some(version.as_str());
        } else {
            return Err(takes_only("loading takes only `version`", name));
        }
    }
    let variant = match asked {
        Some(version) => about::version(task, version)?,
        None => usual(task, |variant| about::offers(&view, task, Some(variant)).next().is_some()),
    };
    let nothing = || ApiError::unavailable("nothing_runnable", "no node that takes queries can run it");
    let variant = variant.ok_or_else(nothing)?;
    let (id, ordinal) = (variant.variant.id, variant.variant.ordinal);
    let is_its = |offer: &Offer| offer.task == task.task.id && offer.ordinal == ordinal;
    // Where it is already, or else where it would be soonest.
    let rank = |ready: &Ready| match ready {
        Ready::Resident => (0, 0),
        Ready::Loading { at } => (1, at.0),
        Ready::Cold { load } => (2, load.0),
    };
    // As the nodes say now: what was unloaded a moment ago is still shown elsewhere.
    let nodes = core.nodes();
    let best = nodes.iter().filter_map(|node| {
        let status = node.status.borrow();
        let offer = status.info.offers.iter().find(|offer| !status.draining && is_its(offer))?;
        Some((rank(&offer.ready), node.id))
    });
    let best = best.min();
    let ((state, _), node) = best.ok_or_else(nothing)?;
    if state == 0 {
        return Ok(());
    }
    if state == 2 {
        core.wake(node, task.task.id, ordinal);
    }
    let Some(node) = core.nodes().into_iter().find(|known| known.id == node) else { return Err(nothing()) };
    let mut status = node.status.clone();
    // What is said before the node has begun is of an earlier load.
    let mut earlier = failed(&status.borrow(), id).is_some();
    let ended = status.wait_for(|status| {
        let resident = status.info.offers.iter().any(|offer| is_its(offer) && offer.ready == Ready::Resident);
        let why = failed(status, id);
        earlier &= why.is_some();
        resident || (why.is_some() && !earlier)
    });
    let why = match tokio::time::timeout(WITHIN, ended).await {
        Ok(Err(_)) => return Err(nothing()),
        Ok(Ok(status)) => match failed(&status, id) {
            Some(cause) => format!("it could not be loaded: {cause}"),
            None => return Ok(()),
        },
        Err(_) => match failed(&node.status.borrow(), id) {
            Some(cause) => format!("it was not loaded again within {} s: {cause}", WITHIN.as_secs()),
            None => {
                format!("it was not in memory within {} s; there may be no room for it", WITHIN.as_secs())
            }
        },
    };
    Err(ApiError::unavailable("loading", why))
}

/// Why a variant could not be loaded on a node, unless one of its devices has it or is about to.
fn failed(status: &NodeStatus, variant: VariantId) -> Option<&str> {
    let mut its = status.replicas.iter().filter(|replica| replica.variant == variant);
    let tried =
        its.clone().any(|replica| !matches!(replica.state, ReplicaState::Failed | ReplicaState::Inactive));
    its.find(|replica| !tried && replica.state == ReplicaState::Failed).map(|replica| replica.cause.as_str())
}

/// The most accurate of the variants that answer where nothing is pinned.
fn usual(task: &TaskView, runnable: impl Fn(&VariantView) -> bool) -> Option<&VariantView> {
    let serving =
        task.variants.iter().filter(|variant| task.is_default(variant.model.id) && runnable(variant));
    serving.max_by_key(|variant| variant.accuracy)
}

/// Has all nodes take a task's variants out of memory, or the one with the number `version`, and waits until they have. What is busy
/// finishes first. A query that needs one later has it loaded again, and what the plan pins is back after a minute.
pub(crate) async fn unload(
    core: &Core,
    caller: &Caller,
    name: &str,
    parameters: &[(String, Value)],
) -> Result<(), ApiError> {
    let view = core.view_of(caller);
    let task = view.task(name)?.owned()?;
    let mut asked = "";
    for (name, value) in parameters {
        match (name.as_str(), value) {
            ("version", Value::Text(version) | Value::Number(version)) => asked = version,
            // A task depends on nothing, and nothing on it.
            ("unload_dependents", Value::Bool(_)) => {}
            _ => return Err(takes_only("unloading takes only `version` and `unload_dependents`", name)),
        }
    }
    let unwanted = about::chosen(task, asked)?;
    let mut gone = Vec::new();
    for node in core.nodes() {
        for variant in unwanted.iter().map(|view| view.variant.id) {
            let loads = loads_in_memory(&node.status.borrow(), variant);
            // Told to all: one may have begun to load it a moment ago.
            core.unload(node.id, variant);
            gone.push(left(node.status.clone(), variant, loads));
        }
    }
    let all = tokio::time::timeout(WITHIN, join_all(gone)).await;
    all.map(|_| ()).map_err(|_| {
        let why =
            format!("it was still in memory after {} s: what it was given is not finished", WITHIN.as_secs());
        ApiError::unavailable("unloading", why)
    })
}

/// On which devices it is in memory or on its way there, and how often it will have been loaded then.
fn loads_in_memory(status: &NodeStatus, variant: VariantId) -> BTreeMap<DeviceIx, u32> {
    let held = |state| !matches!(state, ReplicaState::Inactive | ReplicaState::Failed);
    let replicas = status.replicas.iter().filter(|replica| replica.variant == variant && held(replica.state));
    let loads =
        |replica: &ReplicaStatus| replica.loads.count + u32::from(replica.state == ReplicaState::Loading);
    replicas.map(|replica| (replica.device, loads(replica))).collect()
}

/// Ends when it is not in memory any longer, was loaded anew since, or its node is gone.
async fn left(mut status: watch::Receiver<NodeStatus>, variant: VariantId, before: BTreeMap<DeviceIx, u32>) {
    let left = status.wait_for(|status| {
        let now = loads_in_memory(status, variant);
        before.iter().all(|(device, loads)| now.get(device).is_none_or(|count| count > loads))
    });
    let _gone_with_its_node = left.await;
}

fn takes_only(what: &str, name: &str) -> ApiError {
    let name = excerpt(name);
    ApiError::malformed(format!("{what} here, not {name}; models come in by `modelless model register`"))
}
