//! Placing what is wanted where there is room.

use super::cluster::Cluster;
use modelless_types::{Micros, VariantId, VariantSet};

/// Loads variants wherever they fit: of each in turn one replica, on the node with most room, until nothing more fits.
pub(super) fn everywhere(cluster: &mut Cluster<'_>, wanted: &[VariantId]) {
    loop {
        let mut placed = false;
        for variant in wanted {
            let mut nodes: Vec<usize> = (0..cluster.nodes()).collect();
            nodes.sort_by_key(|node| (std::cmp::Reverse(cluster.free_memory(*node)), *node));
            placed |= nodes.into_iter().any(|node| cluster.load(node, *variant));
        }
        if !placed {
            return;
        }
    }
}

/// The variants that may answer, on any node, with the least time that one query takes.
pub(super) fn admitted(
    cluster: &Cluster<'_>,
    task: modelless_types::TaskId,
    admits: VariantSet,
) -> Vec<(VariantId, Micros)> {
    let mut all: Vec<(VariantId, Micros)> = Vec::new();
    for node in 0..cluster.nodes() {
        for variant in cluster.variants(node) {
            let may = cluster.task_of(variant) == task && admits.contains(cluster.ordinal(variant));
            let alone = cluster.p99(node, variant, 1);
            match all.iter_mut().find(|(known, _)| *known == variant) {
                Some((_, least)) => *least = alone.min(*least),
                None if may => all.push((variant, alone)),
                None => {}
            }
        }
    }
    all
}

/// Least device time for each query, in microseconds, in any batch whose run is within a time; on the node where that is least.
pub(super) fn cheapest_us(cluster: &Cluster<'_>, variant: VariantId, within: Micros) -> f64 {
    let on = |node: usize| {
        let most = cluster.fits(node, variant, within);
        let each = (1..=most).map(|b| cluster.mean_us(node, variant, b) / f64::from(b));
        each.fold(f64::INFINITY, f64::min)
    };
    (0..cluster.nodes()).map(on).fold(f64::INFINITY, f64::min)
}
