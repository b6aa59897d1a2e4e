//! The seam: what every store can do.

use crate::access::Access;
use crate::artefacts::sha256_of;
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
use modelless_types::{
    DeviceIx, ModelId, NodeId, PlanId, Profile, ReplicaId, Task, TaskId, Variant, VariantId,
};
use std::fmt;

/// What must survive a restart. Used as `Arc<dyn Store>`.
///
/// Each call is one transaction: it happens as a whole or not at all, and what it returned is kept even if the
/// machine loses power right after. A call that is dropped before it ends either happened or did not.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Where it keeps things, for people; without passwords.
    fn describe(&self) -> &str;

    /// Everything that is registered, as of one moment.
    async fn catalog(&self) -> Result<Catalog>;

    /// Grows with every change of the catalog and stays the same otherwise: cheap to poll.
    async fn catalog_version(&self) -> Result<u64>;

    /// Makes a task, and its default output space if there is none of that name.
    async fn create_task(&self, task: NewTask) -> Result<Task>;

    /// Changes what may change in a task, and gives what it is then. Where that is what it was, nothing is written.
    async fn change_task(&self, task: TaskId, change: TaskChange) -> Result<Task>;

    /// Removes a task that has no models.
    async fn remove_task(&self, task: TaskId) -> Result<()>;

    /// Registers a model with its variants and gives each the lowest ordinal that its task never used.
    async fn register_model(&self, model: NewModel) -> Result<Registered> {
        self.register_with(model, Evidence::default()).await
    }

    /// The same, with what its variants are measured with on device classes where they have no profile yet.
    async fn register_with(&self, model: NewModel, evidence: Evidence) -> Result<Registered>;

    /// What a model's variants are measured with. Nothing, for one that was registered without.
    async fn evidence(&self, model: ModelId) -> Result<Evidence>;

    /// Takes up the measuring of a variant, or says how far it is; also that it failed and when it may be tried again.
    /// Not while another node has it, whose time is not over. Gives what stands then: whose it is tells whether that
    /// worked. `None` if there is a profile already that is neither an estimate nor provisional ([`Profile::is_provisional`]) nor off. Advisory: [`Store::put_profile`] asks nobody, and ends it unless it is an estimate.
    async fn claim_measuring(&self, wanted: Measuring, now: UnixMicros) -> Result<Option<Measuring>>;

    /// What is being measured, or could not be, by variant and device class.
    async fn measurings(&self) -> Result<Vec<Measuring>>;

    /// Adds a variant to a model.
    async fn add_variant(&self, model: ModelId, variant: NewVariant) -> Result<Variant>;

    /// Makes a model the default version of its name, and tells what it was before. One that is the default already
    /// stays it, and nothing is noted. Verdicts on what becomes it are counted anew: before, only those who tried it asked it.
    async fn promote(&self, model: ModelId, by: Signed) -> Result<VersionChange>;

    /// What becomes of the wish that a version be the default once it is measured ([`Evidence::promote`]). What was changed by that; `None` where nobody
    /// has the wish any longer, or it is the default already. Each wish is granted once: after that others may say what answers.
    async fn wish(&self, model: ModelId, wish: Wish) -> Result<Option<VersionChange>>;

    /// Takes the default version back: the one that was the default before it is again. Refused if `model` is not the
    /// default (any more), so that two who do this at once go back one step and not two; and if there is none before it.
    async fn roll_back(&self, model: ModelId, by: Signed) -> Result<VersionChange>;

    /// What was done to versions of a name, newest first. It outlives the models. See [`crate::VERSION_CHANGES_KEPT`].
    async fn version_changes(&self, task: TaskId, name: &str, limit: u32) -> Result<Vec<VersionChange>>;

    /// Keeps what was measured for a model that is not stored yet, under a key that says with what. See
    /// [`crate::MEASURED_KEPT`].
    async fn keep_measured(&self, key: &str, profile: &Profile, at: UnixMicros) -> Result<()>;

    /// What was kept under a key since then.
    async fn measured(&self, key: &str, since: UnixMicros) -> Result<Option<Profile>>;

    /// Removes a model with its variants and profiles (not its artefacts). Refused while a replica of it serves or
    /// loads, or while it is the default version and there are others, unless forced: then the version that was the
    /// default before it is again, if there is one. Replicas at rest go with it; others keep their rows until whoever holds them has
    /// recorded their end and calls [`Store::remove_replica`].
    async fn remove_model(&self, model: ModelId, force: bool, by: Signed) -> Result<()>;

    /// Keeps what was measured of a variant, in place of what was known on that device class. An estimate takes only another's
    /// place: where something was measured it is dropped. Where another accuracy was measured, verdicts are counted anew.
    async fn put_profile(&self, variant: VariantId, profile: Profile) -> Result<()>;

    /// Says that a profile is off, so that the variant is measured again there. Whether there is one: otherwise nothing is kept,
    /// and neither is it of an estimate, which waits to be measured anyway.
    /// Each node says so for itself.
    async fn mark_stale(&self, stale: StaleProfile) -> Result<bool>;

    /// Takes back what this node said; others still say what they do. Whether it had said so.
    async fn clear_stale(&self, variant: VariantId, device_class: &str, node: &str) -> Result<bool>;

    /// Takes in verdicts on answers, one for each query: the last one stands. Those on queries that were answered before
    /// `expired` are forgotten; no more may be given for them. What became of each, in order.
    async fn put_feedback(&self, given: Vec<Feedback>, expired: UnixMicros) -> Result<Vec<Verdict>>;

    /// What verdicts come to now. In the catalog they stand as of its last change.
    async fn live_accuracies(&self) -> Result<Vec<LiveAccuracy>>;

    /// Flags a variant as less accurate than measured, with what it was found to be, or takes that back as verdicts have it.
    /// Not where counting began anew since `live` was read: then nothing is kept. Whether it was.
    async fn flag_accuracy(&self, live: LiveAccuracy, at: UnixMicros, reason: &str) -> Result<bool>;

    /// Takes a flag back because somebody says so, and has verdicts counted anew. Refused where there is none.
    async fn clear_flag(&self, variant: VariantId, by: Signed, reason: &str) -> Result<FlagChange>;

    /// What was said of a variant's live accuracy and when it was counted anew, newest first. See
    /// [`crate::FLAG_CHANGES_KEPT`].
    async fn flag_changes(&self, variant: VariantId, limit: u32) -> Result<Vec<FlagChange>>;

    /// Takes in a node as up. One that comes back under its name keeps its number.
    async fn register_node(&self, node: NewNode, at: UnixMicros) -> Result<Node>;

    /// Notes how a node stands. `last_seen` never moves backwards.
    async fn node_seen(&self, node: NodeId, state: NodeState, at: UnixMicros) -> Result<()>;

    /// Says that a process is there which is, or wants to be, the node of that name, and gives who is it now: that process,
    /// unless another one is. That one gives way only if it is exactly `gone`, so its beat has not moved since.
    async fn hold_node(
        &self,
        name: &str,
        instance: u64,
        place: &str,
        gone: Option<&Holder>,
    ) -> Result<Holder>;

    /// The process is that node no longer, if it was.
    async fn release_node(&self, name: &str, instance: u64) -> Result<()>;

    /// Every node, gone ones included.
    async fn nodes(&self) -> Result<Vec<Node>>;

    /// A new replica, inactive.
    async fn add_replica(&self, variant: VariantId, node: NodeId, device: DeviceIx) -> Result<Replica>;

    /// Forgets a replica that is inactive or failed. Its transitions stay.
    async fn remove_replica(&self, replica: ReplicaId) -> Result<()>;

    /// Replicas of one node, or all.
    async fn replicas(&self, node: Option<NodeId>) -> Result<Vec<Replica>>;

    /// Moves a replica from one state to another and records it, if it still is in the first.
    async fn record_transition(&self, change: NewTransition) -> Result<Transition>;

    /// The latest transitions of one replica, or of all, newest first.
    async fn transitions(&self, replica: Option<ReplicaId>, limit: u32) -> Result<Vec<Transition>>;

    /// Forgets transitions from before a moment; gives how many.
    async fn forget_transitions(&self, before: UnixMicros) -> Result<u64>;

    /// What is written down of machines that are rented.
    fn rented(&self) -> &dyn Machines;

    /// Trials of new versions.
    fn on_trial(&self) -> &dyn Trials;

    /// Offline jobs.
    fn offline(&self) -> &dyn Jobs;

    /// What was asked of tasks earlier.
    fn history(&self) -> &dyn Bins;

    /// Tells of something that happened. Transitions of replicas, and nodes that come and go, tell themselves. See
    /// [`crate::EVENTS_KEPT`].
    async fn note_event(&self, event: NewEvent) -> Result<Event>;

    /// What happened after that place, oldest first; without one the latest, oldest first too.
    async fn events(&self, after: Option<u64>, limit: u32) -> Result<Vec<Event>>;

    /// Makes a plan (JSON) the current one if `parent` still is.
    async fn save_plan(&self, parent: Option<PlanId>, json: String, at: UnixMicros) -> Result<SavePlan>;

    /// The current plan.
    async fn current_plan(&self) -> Result<Option<Plan>>;

    /// The latest plans, newest first.
    async fn plans(&self, limit: u32) -> Result<Vec<Plan>>;

    /// A plan by its number; old ones are forgotten (see [`crate::PLANS_KEPT`]).
    async fn plan(&self, id: PlanId) -> Result<Option<Plan>>;

    /// The secret of this name. The first call of all sets it to its candidate (fresh random bytes, made by the
    /// caller); later and concurrent ones get what the first set.
    async fn secret(&self, name: &str, candidate: [u8; 32]) -> Result<[u8; 32]>;

    /// Who may ask.
    fn access(&self) -> &dyn Access;

    /// What was done, by whom.
    fn audit(&self) -> &dyn Audit;

    /// Lets go of files and connections. Calls after it fail.
    async fn close(&self);
}

/// A name of the store that no other one has, whatever it is reached by: by its address two could be mixed up, and one could look like
/// two. The first call of all makes it, from fresh random bytes of the caller; it moves with a copy of the store.
pub async fn identity(store: &dyn Store, candidate: [u8; 32]) -> Result<String> {
    // Named after what it was first needed for.
    let secret = store.secret("artefacts", candidate).await?;
    Ok(sha256_of(&secret[..]).expect("memory can be read; this is a bug"))
}
