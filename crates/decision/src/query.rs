//! A query as decisions see it: ids, goals as absolute times, and the set of variants that may answer.

use modelless_types::{
    AppId, Bytes, CostPer1k, Prefer, Priority, QueryKey, TaskId, TenantId, Time, VariantSet,
};
use serde::{Deserialize, Serialize};

/// A class: queries that the same variants of the same task may answer. Exactly the admissible set, no rounding;
/// the output space is part of it, since a set never spans two spaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Class {
    /// The task.
    pub task: TaskId,
    /// Who may answer, by ordinal in the task.
    pub admits: VariantSet,
}

/// One query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Query {
    /// Its name inside this process.
    pub key: QueryKey,
    /// Who pays.
    pub tenant: TenantId,
    /// Who asks.
    pub app: AppId,
    /// Which variants may answer.
    pub class: Class,
    /// When it reached the gateway.
    pub arrived: Time,
    /// When it wants its answer.
    pub deadline: Time,
    /// When nobody waits any longer: the deadline, or later for a query that takes best effort.
    pub expires: Time,
    /// Price ceiling, checked at dispatch.
    pub max_cost: Option<CostPer1k>,
    /// What idle capacity is spent on.
    pub prefer: Prefer,
    /// Who goes first when not all can.
    pub priority: Priority,
    /// Latency and cost goals may be missed rather than the query refused.
    pub best_effort: bool,
    /// Decoded size, for bounds on what waits.
    pub bytes: Bytes,
    /// For the node that it is at: another could answer it too, so one that has fallen behind may give it back, once.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub returnable: bool,
}
