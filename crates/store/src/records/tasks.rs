//! A task to be made, and what may be otherwise in one that is there.

use super::NewSpace;
use modelless_types::{
    AccuracyRule, Ahead, Batching, CacheFor, DeclaredRule, Goals, KeepFor, Labels, LiveRule, SpaceId, Task,
    TaskBatching, TaskId, TaskKind, TenantId, TensorSpec,
};
use serde::{Deserialize, Serialize};

/// A task to be made. See [`Task`] for the fields.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewTask {
    /// Who owns it.
    pub tenant: TenantId,
    /// Lower-case letters, digits, `-` and `_`; unique for the tenant.
    pub name: String,
    /// Input and output kind.
    pub kind: TaskKind,
    /// Name of its metric.
    pub metric: String,
    /// Which figure floors are compared with.
    pub accuracy_rule: AccuracyRule,
    /// Whether feedback counts for floors.
    #[serde(default)]
    pub live_accuracy: LiveRule,
    /// Whether accuracies that nobody measured count for floors.
    #[serde(default)]
    pub declared_accuracy: DeclaredRule,
    /// Output labels, for classification.
    pub labels: Labels,
    /// Inputs of one item, for `tensor` tasks.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of one item, for `tensor` tasks.
    pub outputs: Vec<TensorSpec>,
    /// Its default output space. `None`: one named like the task, made from its labels or outputs.
    pub space: Option<NewSpace>,
    /// Goals that hold where a query gives none.
    pub defaults: Goals,
    /// How its queries share batches. `None`: as the node is set.
    #[serde(default)]
    pub batching: Option<Batching>,
    /// For how long its answers may be given again to who asks the very same.
    #[serde(default)]
    pub cache: CacheFor,
    /// For how long its variants stay in memory after its last query.
    #[serde(default)]
    pub keep: KeepFor,
    /// Whether what earlier days tell of it counts before it is asked for.
    #[serde(default)]
    pub ahead: Ahead,
    /// One sentence for people.
    pub description: String,
}

impl NewTask {
    pub(crate) fn numbered(self, id: TaskId, default_space: SpaceId) -> Task {
        Task {
            id,
            name: self.name,
            tenant: self.tenant,
            kind: self.kind,
            metric: self.metric,
            accuracy_rule: self.accuracy_rule,
            live_accuracy: self.live_accuracy,
            declared_accuracy: self.declared_accuracy,
            labels: self.labels,
            inputs: self.inputs,
            outputs: self.outputs,
            default_space,
            defaults: self.defaults,
            batching: self.batching,
            cache: self.cache,
            keep: self.keep,
            ahead: self.ahead,
            description: self.description,
        }
    }
}

/// What is to be otherwise in a task; what is `None` stays, and is not told to a server. The rest of a task is what its models were checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TaskChange {
    /// Whether feedback counts for floors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_accuracy: Option<LiveRule>,
    /// Whether accuracies that nobody measured do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared_accuracy: Option<DeclaredRule>,
    /// For how long its answers may be given again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheFor>,
    /// For how long its variants stay in memory after its last query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<KeepFor>,
    /// Whether what earlier days tell of it counts before it is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Ahead>,
    /// How its queries share batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batching: Option<TaskBatching>,
}

impl TaskChange {
    /// The task as it is then; `None` if that is what it is.
    pub(crate) fn of(self, task: &Task) -> Option<Task> {
        let live_accuracy = self.live_accuracy.unwrap_or(task.live_accuracy);
        let declared_accuracy = self.declared_accuracy.unwrap_or(task.declared_accuracy);
        let cache = self.cache.unwrap_or(task.cache);
        let keep = self.keep.unwrap_or(task.keep);
        let ahead = self.ahead.unwrap_or(task.ahead);
        let batching = self.batching.map_or(task.batching, TaskBatching::own);
        let changed = Task { live_accuracy, declared_accuracy, cache, keep, ahead, batching, ..task.clone() };
        (changed != *task).then_some(changed)
    }
}
