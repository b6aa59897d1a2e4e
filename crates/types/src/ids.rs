//! Identifiers. Each is its own type, so a model can never be passed where a variant is meant.

use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(/// Who owns models and pays for queries.
    TenantId(u32), "tenant-");
id!(/// Which application of a tenant asks.
    AppId(u32), "app-");
id!(/// A key of an application, as numbered by the store. No secret.
    KeyId(u32), "key-");
id!(/// A task, as numbered by the store.
    TaskId(u32), "task-");
id!(/// One version of one trained artefact, as numbered by the store.
    ModelId(u32), "model-");
id!(/// A model made runnable, as numbered by the store. Never reused.
    VariantId(u32), "variant-");
id!(/// One executor on one machine.
    NodeId(u32), "node-");
id!(/// A device of a node, by its position there.
    DeviceIx(u16), "device-");
id!(/// A variant resident on a device, as numbered by the store.
    ReplicaId(u64), "replica-");
id!(/// An output space of a task: answers of different models are interchangeable only inside one.
    SpaceId(u32), "space-");
id!(/// A class of queries inside one snapshot of a gateway: those that the same variants may answer.
    ClassId(u32), "class-");
id!(/// A query inside one process, in order of arrival. What users see is a signed string instead.
    QueryKey(u64), "q");

/// A query as everybody outside of its gateway's process names it: 16 hexadecimal digits in headers, logs and traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueryNumber(pub u64);

impl fmt::Display for QueryNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl QueryNumber {
    /// That of a query, where those of its gateway count from here.
    pub const fn of(key: QueryKey, from: Self) -> Self {
        Self(from.0.wrapping_add(key.0))
    }
}

id!(/// A machine of a pool, as numbered by the store. Never reused.
    MachineId(u64), "machine-");
id!(/// An offline job, as numbered by the store. Never reused.
    JobId(u64), "job-");
id!(/// A plan of what is pinned where, as numbered by the store; a later one has a higher number.
    PlanId(u64), "plan-");
id!(/// A trial of a new version, as numbered by the store. Never reused.
    TrialId(u64), "trial-");

impl TenantId {
    /// The tenant that exists before any is made; everything on a laptop belongs to it.
    pub const DEFAULT: Self = Self(1);
}

impl AppId {
    /// The application that a query without a key belongs to.
    pub const DEFAULT: Self = Self(1);
}
