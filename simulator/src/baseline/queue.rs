//! What waits: a queue in order of deadlines or of coming, with the one drop rule that all policies share.

use super::cluster::{Ask, Cluster};
use modelless_types::{Micros, Time, VariantId};
use std::collections::BTreeMap;

/// What is served first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Order {
    /// Who is due first.
    #[default]
    Deadline,
    /// Who came first.
    Coming,
}

/// Queries that wait.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    order: Order,
    asks: BTreeMap<(Time, u64), Ask>,
}

impl Queue {
    /// Served as they came.
    pub fn of_comers() -> Self {
        Self { order: Order::Coming, ..Self::default() }
    }

    fn place(&self, ask: &Ask) -> (Time, u64) {
        let time = match self.order {
            Order::Deadline => ask.deadline,
            Order::Coming => ask.came,
        };
        (time, ask.key)
    }

    /// One more.
    pub fn push(&mut self, ask: Ask) {
        self.asks.insert(self.place(&ask), ask);
    }

    /// The next.
    pub fn head(&self) -> Option<&Ask> {
        self.asks.first_key_value().map(|(_, ask)| ask)
    }

    /// How many wait.
    pub fn len(&self) -> u32 {
        u32::try_from(self.asks.len()).unwrap_or(u32::MAX)
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.asks.is_empty()
    }

    /// All that wait, the next first.
    pub fn iter(&self) -> impl Iterator<Item = &Ask> {
        self.asks.values()
    }

    /// The next ones.
    pub fn take(&mut self, most: u32) -> Vec<Ask> {
        let mut taken = Vec::new();
        while taken.len() < most as usize
            && let Some((_, ask)) = self.asks.pop_first()
        {
            taken.push(ask);
        }
        taken
    }

    /// The next ones that a test lets pass.
    pub fn take_if(&mut self, most: u32, wanted: impl Fn(&Ask) -> bool) -> Vec<Ask> {
        let keys: Vec<_> = self
            .asks
            .iter()
            .filter(|(_, ask)| wanted(ask))
            .take(most as usize)
            .map(|(key, _)| *key)
            .collect();
        keys.iter().filter_map(|key| self.asks.remove(key)).collect()
    }

    /// The drop rule: whoever stands at the head and could not be in time in a batch of one is refused.
    pub fn drop_late(&mut self, cluster: &mut Cluster<'_>, node: usize, variant: VariantId) {
        let alone = cluster.p99(node, variant, 1);
        self.drop_beyond(cluster, alone);
    }

    /// The same for who cannot wait so long any more.
    pub fn drop_beyond(&mut self, cluster: &mut Cluster<'_>, takes: Micros) {
        while let Some(ask) = self.head().copied()
            && cluster.now() + takes > ask.deadline
        {
            self.asks.pop_first();
            cluster.refuse(&ask, "too_late");
        }
    }

    /// The same in batches as large as they come, up to `most`: whoever would be late in the one that is there is refused, since to make it
    /// smaller for them would make all others late. What is left of it, down to a size that is taken.
    pub(super) fn shed(
        &mut self,
        cluster: &mut Cluster<'_>,
        (node, variant): (usize, VariantId),
        most: u32,
        size: impl Fn(u32) -> u32,
    ) -> u32 {
        while let Some(head) = self.head().copied() {
            let batch = size(self.len().min(most.max(1)));
            if cluster.now() + cluster.p99(node, variant, batch) <= head.deadline {
                return batch;
            }
            self.asks.pop_first();
            cluster.refuse(&head, "too_late");
        }
        0
    }

    /// How many of them fit into one batch that is in time for the head; at least one, unless nobody waits.
    pub fn in_time(&self, cluster: &Cluster<'_>, node: usize, variant: VariantId) -> u32 {
        let Some(head) = self.head() else { return 0 };
        cluster.fits(node, variant, head.deadline - cluster.now()).min(self.len()).max(1)
    }
}
