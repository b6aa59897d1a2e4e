//! What must survive a restart: tasks, models, variants, profiles, nodes, replicas and their history, plans,
//! machines that are rented, keys (trait [`Store`]), and the artefacts themselves ([`Artefacts`]).
//!
//! Only this crate knows SQL. It decides nothing (which state may follow which is for `decision` to say), reads
//! no clock (times are passed in) and is never called while a query is answered: readers poll
//! [`Store::catalog_version`] and build their own snapshots. Live figures such as load or demand, which may be
//! lost at any moment, are not kept here.
//!
//! [`open`] gives SQLite or Postgres; [`MemStore`] is the fake for tests. One suite of tests holds for all three.
#![warn(missing_docs)]

mod access;
mod api;
mod artefacts;
mod audit;
mod bins;
mod check;
mod data_dir;
mod error;
mod events;
mod jobs;
mod learnt;
mod machines;
mod mem;
mod opened;
mod policies;
mod records;
mod sql;
mod trials;
mod url;
mod versions;

pub use access::{
    Access, Doors, ENDED_KEYS_KEPT, Grant, KEYS_MAX, KeptSecret, Key, NewKey, Owner, Quota, Rotation,
    SecretKey, TENANTS_MAX, UPLOAD_KEPT, UPLOADS_MAX, Upload, Visibility, digest, without_keys,
};
pub use api::{Store, identity};
pub use artefacts::{Artefacts, Cleared, PutArtefact, sha256_of};
pub use audit::{AUDIT_KEPT, Audit, Deed, Entry, REFUSED_KEPT, STRANGERS};
pub use bins::{BINS_A_SLOT, Bins, RANGES_AT_ONCE, SLOTS_KEPT, SlotSeen};
pub use data_dir::DataDir;
pub use error::{Error, Result};
pub use events::{Event, EventKind, NewEvent};
pub use jobs::{
    JOB_BODY_MAX, JOB_INPUTS_AT_ONCE, JOB_INPUTS_MAX, JOBS_KEPT, JOBS_OPEN_MAX, Job, JobEnd, JobInput,
    JobOutput, Jobs, NewJob,
};
pub use learnt::{
    FEEDBACK_KEPT, FLAG_CHANGES_KEPT, Feedback, FlagAction, FlagChange, Floor, Kept, LIVE_MEMORY,
    LiveAccuracy, StaleProfile, Verdict,
};
pub use machines::{
    MACHINE_CHANGES_KEPT, MACHINES_KEPT, Machine, MachineChange, MachineStep, Machines, NewMachine,
    PoolStands,
};
pub use mem::MemStore;
pub use modelless_types::PlanId;
pub use opened::Opened;
pub use policies::{POLICIES_MAX, Policy, PolicyBounds, PolicyGoals, PolicyOf, PolicyShare, WEIGHT_MAX};
pub use records::{
    App, Catalog, Evidence, Holder, Measuring, NewModel, NewNode, NewSpace, NewTask, NewTransition,
    NewVariant, Node, NodeState, Plan, Registered, Replica, SavePlan, SetArtefact, Space, SpaceKind,
    TaskChange, Tenant, Transition, UnixMicros,
};
pub use sql::{SqlStore, open, open_postgres, open_sqlite};
pub use trials::{EndTrial, NewTrial, TRIALS_AT_ONCE, TRIALS_KEPT, Trial, TrialEnded, Trials};
pub use url::redact;
pub use versions::{Signed, VersionAction, VersionChange, Wish};

/// Plans older than this many are forgotten when a new one is saved.
pub const PLANS_KEPT: u64 = 1_000;
/// Of what happened so much is remembered.
pub const EVENTS_KEPT: u64 = 10_000;
/// Of all models together so many changes of versions are remembered.
pub const VERSION_CHANGES_KEPT: u64 = 10_000;
/// So many measurements are kept for registrations that were cut short.
pub const MEASURED_KEPT: u64 = 1_000;
