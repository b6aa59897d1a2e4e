//! [`Store`] on SQLite and Postgres. Each query is written once; where the two differ is in `conn`, `open` and
//! `migrate`.
//!
//! Races are settled by the rows of `counters`: whoever changes something first takes the next number of what it
//! changes, which makes all others who want to change it wait. So a check and the change after it cannot be
//! overtaken, and no error of a constraint has to be understood.

mod access;
mod audit;
mod bins;
mod catalog;
pub(crate) mod conn;
mod events;
mod flags;
mod fleet;
mod jobs;
mod learnt;
mod machines;
mod measuring;
mod migrate;
mod open;
mod plans;
mod trials;
mod versions;

pub use open::{open, open_postgres, open_sqlite};

use crate::access::Access;
use crate::api::Store;
use crate::audit::Audit;
use crate::bins::Bins;
use crate::error::Result;
use crate::events::{Event, NewEvent};
use crate::jobs::Jobs;
use crate::learnt::{Feedback, FlagChange, LiveAccuracy, StaleProfile, Verdict};
use crate::machines::Machines;
use crate::records::{
    Catalog, Evidence, Holder, Measuring, NewModel, NewNode, NewTask, NewTransition, NewVariant, Node,
    NodeState, Plan, Registered, Replica, SavePlan, TaskChange, Transition, UnixMicros,
};
use crate::trials::Trials;
use crate::versions::{Signed, VersionChange, Wish};
use async_trait::async_trait;
use conn::{Db, Pools};
use modelless_types::{
    DeviceIx, ModelId, NodeId, PlanId, Profile, ReplicaId, Task, TaskId, Variant, VariantId,
};
use std::fmt;

/// A store in a SQLite file or a Postgres database. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct SqlStore {
    db: Db,
}

impl fmt::Debug for SqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqlStore").field(&self.db.name).finish()
    }
}

#[async_trait]
impl Store for SqlStore {
    fn describe(&self) -> &str {
        &self.db.name
    }

    async fn catalog(&self) -> Result<Catalog> {
        catalog::read(&self.db).await
    }

    async fn catalog_version(&self) -> Result<u64> {
        catalog::version(&self.db).await
    }

    async fn create_task(&self, task: NewTask) -> Result<Task> {
        catalog::create_task(&self.db, task).await
    }

    async fn change_task(&self, task: TaskId, change: TaskChange) -> Result<Task> {
        catalog::change_task(&self.db, task, change).await
    }

    async fn remove_task(&self, task: TaskId) -> Result<()> {
        catalog::remove_task(&self.db, task).await
    }

    async fn register_with(&self, model: NewModel, evidence: Evidence) -> Result<Registered> {
        catalog::register_model(&self.db, model, &evidence).await
    }

    async fn evidence(&self, model: ModelId) -> Result<Evidence> {
        measuring::evidence(&self.db, model).await
    }

    async fn claim_measuring(&self, wanted: Measuring, now: UnixMicros) -> Result<Option<Measuring>> {
        measuring::claim(&self.db, wanted, now).await
    }

    async fn measurings(&self) -> Result<Vec<Measuring>> {
        measuring::all(&self.db).await
    }

    async fn add_variant(&self, model: ModelId, variant: NewVariant) -> Result<Variant> {
        catalog::add_variant(&self.db, model, variant).await
    }

    async fn promote(&self, model: ModelId, by: Signed) -> Result<VersionChange> {
        versions::promote(&self.db, model, by).await
    }

    async fn wish(&self, model: ModelId, wish: Wish) -> Result<Option<VersionChange>> {
        versions::wish(&self.db, model, wish).await
    }

    async fn roll_back(&self, model: ModelId, by: Signed) -> Result<VersionChange> {
        versions::roll_back(&self.db, model, by).await
    }

    async fn version_changes(&self, task: TaskId, name: &str, limit: u32) -> Result<Vec<VersionChange>> {
        versions::changes(&self.db, task, name, limit).await
    }

    async fn keep_measured(&self, key: &str, profile: &Profile, at: UnixMicros) -> Result<()> {
        versions::keep_measured(&self.db, key, profile, at).await
    }

    async fn measured(&self, key: &str, since: UnixMicros) -> Result<Option<Profile>> {
        versions::measured(&self.db, key, since).await
    }

    async fn remove_model(&self, model: ModelId, force: bool, by: Signed) -> Result<()> {
        catalog::remove_model(&self.db, model, force, by).await
    }

    async fn put_profile(&self, variant: VariantId, profile: Profile) -> Result<()> {
        catalog::put_profile(&self.db, variant, profile).await
    }

    async fn mark_stale(&self, stale: StaleProfile) -> Result<bool> {
        learnt::mark(&self.db, stale).await
    }

    async fn clear_stale(&self, variant: VariantId, device_class: &str, node: &str) -> Result<bool> {
        learnt::unmark(&self.db, variant, device_class, node).await
    }

    async fn put_feedback(&self, given: Vec<Feedback>, expired: UnixMicros) -> Result<Vec<Verdict>> {
        learnt::put_feedback(&self.db, given, expired).await
    }

    async fn live_accuracies(&self) -> Result<Vec<LiveAccuracy>> {
        learnt::all(&self.db).await
    }

    async fn flag_accuracy(&self, live: LiveAccuracy, at: UnixMicros, reason: &str) -> Result<bool> {
        flags::flag(&self.db, live, at, reason).await
    }

    async fn clear_flag(&self, variant: VariantId, by: Signed, reason: &str) -> Result<FlagChange> {
        flags::clear(&self.db, variant, by, reason).await
    }

    async fn flag_changes(&self, variant: VariantId, limit: u32) -> Result<Vec<FlagChange>> {
        flags::changes(&self.db, variant, limit).await
    }

    async fn register_node(&self, node: NewNode, at: UnixMicros) -> Result<Node> {
        fleet::register_node(&self.db, node, at).await
    }

    async fn node_seen(&self, node: NodeId, state: NodeState, at: UnixMicros) -> Result<()> {
        fleet::node_seen(&self.db, node, state, at).await
    }

    async fn hold_node(
        &self,
        name: &str,
        instance: u64,
        place: &str,
        gone: Option<&Holder>,
    ) -> Result<Holder> {
        fleet::hold_node(&self.db, name, instance, place, gone).await
    }

    async fn release_node(&self, name: &str, instance: u64) -> Result<()> {
        fleet::release_node(&self.db, name, instance).await
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        fleet::nodes(&self.db).await
    }

    async fn add_replica(&self, variant: VariantId, node: NodeId, device: DeviceIx) -> Result<Replica> {
        fleet::add_replica(&self.db, variant, node, device).await
    }

    async fn remove_replica(&self, replica: ReplicaId) -> Result<()> {
        fleet::remove_replica(&self.db, replica).await
    }

    async fn replicas(&self, node: Option<NodeId>) -> Result<Vec<Replica>> {
        fleet::replicas(&self.db, node).await
    }

    async fn record_transition(&self, change: NewTransition) -> Result<Transition> {
        fleet::record_transition(&self.db, change).await
    }

    async fn transitions(&self, replica: Option<ReplicaId>, limit: u32) -> Result<Vec<Transition>> {
        fleet::transitions(&self.db, replica, limit).await
    }

    async fn forget_transitions(&self, before: UnixMicros) -> Result<u64> {
        fleet::forget_transitions(&self.db, before).await
    }

    fn rented(&self) -> &dyn Machines {
        self
    }

    fn on_trial(&self) -> &dyn Trials {
        self
    }

    fn offline(&self) -> &dyn Jobs {
        self
    }

    fn history(&self) -> &dyn Bins {
        self
    }

    async fn note_event(&self, event: NewEvent) -> Result<Event> {
        events::note(&self.db, event).await
    }

    async fn events(&self, after: Option<u64>, limit: u32) -> Result<Vec<Event>> {
        events::after(&self.db, after, limit).await
    }

    async fn save_plan(&self, parent: Option<PlanId>, json: String, at: UnixMicros) -> Result<SavePlan> {
        plans::save(&self.db, parent, json, at).await
    }

    async fn current_plan(&self) -> Result<Option<Plan>> {
        plans::current(&self.db).await
    }

    async fn plans(&self, limit: u32) -> Result<Vec<Plan>> {
        plans::latest(&self.db, limit).await
    }

    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        plans::get(&self.db, id).await
    }

    async fn secret(&self, name: &str, candidate: [u8; 32]) -> Result<[u8; 32]> {
        plans::secret(&self.db, name, candidate).await
    }

    fn access(&self) -> &dyn Access {
        self
    }

    fn audit(&self) -> &dyn Audit {
        self
    }

    async fn close(&self) {
        match &self.db.pools {
            // The writer last, so that it can fold the log into the file.
            Pools::Sqlite { read, write } => {
                read.close().await;
                write.close().await;
            }
            Pools::Postgres(pool) => pool.close().await,
        }
    }
}
