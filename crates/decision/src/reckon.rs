//! What one input of an offline job is expected to take: in a batch of the size that takes the least of a device, on the node and with the
//! variant that its goals prefer.

use crate::admission::{admit, with_defaults};
use crate::route::Snapshot;
use core::cmp::Ordering;
use modelless_types::{CostPer1k, Goals, Micros, Prefer, Refusal, TaskId, VariantId};

/// What is expected of one input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reckoned {
    /// Who would answer.
    pub variant: VariantId,
    /// If a thousand were asked for.
    pub cost: CostPer1k,
    /// Its part of a batch's time.
    pub device: Micros,
}

/// For goals as those of a query. `None` where nothing known could be within its ceiling in the largest batches.
pub fn reckon(snapshot: &Snapshot, task: TaskId, goals: &Goals) -> Result<Option<Reckoned>, Refusal> {
    let admitted = admit(snapshot, task, goals)?;
    let Some(info) = snapshot.task(task) else { return Ok(None) };
    let prefer = with_defaults(goals, &info.defaults).prefer.unwrap_or_default();
    let offers = snapshot.table().nodes.iter().flat_map(|node| {
        let theirs = node.offers.iter().filter(move |offer| offer.task == task);
        theirs.map(move |offer| (node.price, offer))
    });
    let all = offers.filter_map(|(price, offer)| {
        let variant = info.variant(offer.ordinal).filter(|v| admitted.class.admits.contains(v.ordinal))?;
        let batch = offer.run.best_batch(variant.max_batch);
        let cost = offer.run.cost(batch, offer.price(price));
        let device = offer.run.per_query(variant.max_batch).mean();
        let payable = admitted.max_cost.is_none_or(|ceiling| cost <= ceiling);
        payable.then_some((variant.accuracy, Reckoned { variant: variant.id, cost, device }))
    });
    let best = all.min_by(|(a_accuracy, a), (b_accuracy, b)| {
        let wish = match prefer {
            Prefer::Accuracy => b_accuracy.cmp(a_accuracy),
            Prefer::Cost => a.cost.cmp(&b.cost),
            Prefer::Latency => Ordering::Equal,
        };
        wish.then(a.device.cmp(&b.device)).then(a.variant.cmp(&b.variant))
    });
    Ok(best.map(|(_, one)| one))
}
