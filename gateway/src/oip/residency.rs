//! Loading by hand. What is in memory is the platform's business: it loads what queries need and evicts for them. Loading beforehand
//! spares the first query its wait; unloading would only make room that is made anyway when it is needed.

use super::about;
use super::request::Value;
use crate::core::Core;
use crate::errors::ApiError;
use crate::suggest::excerpt;
use crate::view::{TaskView, VariantView};
use modelless_decision::route::{Offer, Ready};
use std::time::Duration;

/// How long a load is waited for.
const WITHIN: Duration = Duration::from_mins(1);

/// Has a node load a variant of a task, and waits until it has: the one with the number given as the parameter `version`, else the
/// most accurate of those that answer without a pin.
pub(crate) async fn load(core: &Core, name: &str, parameters: &[(String, Value)]) -> Result<(), ApiError> {
    let view = core.view();
    let task = view.task(name)?;
    let mut asked = None;
    for (name, value) in parameters {
        if let ("version", Value::Text(version) | Value::Number(version)) = (name.as_str(), value) {
            asked = Some(version.as_str());
        } else {
            let message = format!(
                "loading takes only `version` here, not {}; models come in by `modelless model register`",
                excerpt(name)
            );
            return Err(ApiError::malformed(message));
        }
    }
    let variant = match asked {
        Some(version) => about::version(task, version)?,
        None => usual(task, |variant| about::offers(&view, task, Some(variant)).next().is_some()),
    };
    let nothing = || ApiError::unavailable("nothing_runnable", "no node that takes queries can run it");
    let variant = variant.ok_or_else(nothing)?;
    let (id, ordinal) = (task.task.id, variant.variant.ordinal);
    let is_its = |offer: &Offer| offer.task == id && offer.ordinal == ordinal;
    // Where it is already, or else where it would be soonest.
    let rank = |ready: &Ready| match ready {
        Ready::Resident => (0, 0),
        Ready::Loading { at } => (1, at.0),
        Ready::Cold { load } => (2, load.0),
    };
    let nodes = view.nodes.iter().filter(|node| !node.draining);
    let best = nodes
        .filter_map(|node| {
            Some((rank(&node.info.offers.iter().find(|offer| is_its(offer))?.ready), node.node))
        })
        .min();
    let ((state, _), node) = best.ok_or_else(nothing)?;
    if state == 0 {
        return Ok(());
    }
    if state == 2 {
        core.wake(node, id, ordinal);
    }
    let Some(node) = core.nodes().into_iter().find(|known| known.id == node) else { return Err(nothing()) };
    let mut status = node.status.clone();
    let resident = status.wait_for(|status| {
        status.info.offers.iter().any(|offer| is_its(offer) && offer.ready == Ready::Resident)
    });
    match tokio::time::timeout(WITHIN, resident).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => Err(nothing()),
        Err(_) => Err(ApiError::unavailable(
            "loading",
            format!("it was not in memory within {} s; there may be no room for it", WITHIN.as_secs()),
        )),
    }
}

/// The most accurate of the variants that answer where nothing is pinned.
fn usual(task: &TaskView, runnable: impl Fn(&VariantView) -> bool) -> Option<&VariantView> {
    let serving =
        task.variants.iter().filter(|variant| task.is_default(variant.model.id) && runnable(variant));
    serving.max_by_key(|variant| variant.accuracy)
}

/// Says why not.
pub(crate) fn unload(core: &Core, name: &str) -> Result<(), ApiError> {
    core.view().task(name)?;
    Err(ApiError::new(
        http::StatusCode::NOT_IMPLEMENTED,
        "not_served_here",
        "nothing is unloaded by hand: what is idle makes room by itself when something else needs it",
    ))
}
