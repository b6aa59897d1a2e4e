//! Everything that runs ask of variants again and again, made ready once: by number, for each class of devices.

use crate::scenario::{Scenario, VariantSpec};
use modelless_decision::RunModel;
use modelless_types::{Bytes, Micros, TaskId, VariantId};
use std::collections::BTreeMap;

/// A variant on a class of devices, as it truly behaves.
pub(crate) struct Known<'a> {
    pub(crate) task: TaskId,
    pub(crate) spec: &'a VariantSpec,
    pub(crate) run: RunModel,
    /// What whoever decides is told of that.
    pub(crate) told: RunModel,
    pub(crate) max_batch: u32,
    pub(crate) memory: Bytes,
    pub(crate) load_time: Micros,
}

/// All variants on all classes.
pub(crate) struct Catalog<'a> {
    specs: Vec<(VariantId, &'a VariantSpec)>,
    classes: Vec<Vec<Option<Known<'a>>>>,
    nodes: Vec<usize>,
}

impl<'a> Catalog<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        let mut specs: Vec<_> = scenario.variants().map(|(_, v)| (v.id, v)).collect();
        specs.sort_by_key(|(id, _)| *id);
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let mut classes = Vec::new();
        let nodes = scenario.nodes.iter().map(|node| {
            *names.entry(&node.class).or_insert_with(|| {
                let mut known = scenario.catalog(&node.class);
                let one = |(id, spec): &(VariantId, &'a VariantSpec)| {
                    let at = known.iter().position(|v| v.id == *id)?;
                    let v = known.swap_remove(at);
                    let (max_batch, memory, load_time) = (v.max_batch, v.memory, v.load_time);
                    let run = spec.truth(&node.class)?;
                    Some(Known { task: v.task, spec, run, told: v.run, max_batch, memory, load_time })
                };
                classes.push(specs.iter().map(one).collect());
                classes.len() - 1
            })
        });
        let nodes = nodes.collect();
        Self { specs, classes, nodes }
    }

    /// The number of a task's variant, wherever it runs.
    pub(crate) fn number(&self, task: TaskId, ordinal: u8) -> Option<VariantId> {
        let known = |at: usize| self.classes.iter().find_map(|class| class[at].as_ref());
        let of = |(at, (id, spec)): (usize, &(VariantId, &VariantSpec))| {
            (spec.ordinal == ordinal && known(at)?.task == task).then_some(*id)
        };
        self.specs.iter().enumerate().find_map(of)
    }

    /// A variant, wherever it runs.
    pub(crate) fn spec(&self, id: VariantId) -> Option<&'a VariantSpec> {
        self.position(id).map(|at| self.specs[at].1)
    }

    /// A variant on a node; `None` where it cannot run.
    pub(crate) fn on(&self, node: usize, id: VariantId) -> Option<&Known<'a>> {
        self.classes[self.nodes[node]][self.position(id)?].as_ref()
    }

    /// All that runs on a node, by rising number.
    pub(crate) fn all_on(&self, node: usize) -> impl Iterator<Item = &Known<'a>> {
        self.classes[self.nodes[node]].iter().flatten()
    }

    fn position(&self, id: VariantId) -> Option<usize> {
        // Numbers usually rise by one from one.
        let guess = usize::try_from(id.0).unwrap_or(usize::MAX).wrapping_sub(1);
        if self.specs.get(guess).is_some_and(|(found, _)| *found == id) {
            return Some(guess);
        }
        self.specs.binary_search_by_key(&id, |(found, _)| *found).ok()
    }
}
