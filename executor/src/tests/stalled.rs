//! A store that stops answering must not be noticed by anybody who asks or waits.

use super::{LONG, Setup, bed_with, config};
use crate::Config;
use async_trait::async_trait;
use modelless_store::{
    Catalog, Event, Evidence, Feedback, FlagChange, Holder, LiveAccuracy, Measuring, MemStore, NewEvent,
    NewModel, NewNode, NewTask, NewTransition, NewVariant, Node, NodeState, Plan, PlanId, Registered,
    Replica, Result, SavePlan, Signed, StaleProfile, Store, TaskChange, Transition, UnixMicros, Verdict,
    VersionChange, Wish,
};
use modelless_types::{
    DeviceIx, Micros, ModelId, NodeId, Profile, QueryKey, Refusal, ReplicaId, Task, TaskId, Variant,
    VariantId,
};
use modelless_wire::Body;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Answers until it is told to stop, and from then on not before it is told to go on. What was asked meanwhile is never answered.
#[derive(Debug)]
pub(super) struct Stalls {
    store: Arc<MemStore>,
    stalled: watch::Receiver<bool>,
    /// How often somebody tried to mark a profile.
    pub(super) marks: AtomicU32,
}

impl Stalls {
    pub(super) fn new(stalled: watch::Receiver<bool>) -> Self {
        Self { store: Arc::default(), stalled, marks: AtomicU32::new(0) }
    }

    async fn here(&self) -> &MemStore {
        if *self.stalled.borrow() {
            std::future::pending::<()>().await;
        }
        &self.store
    }
}

#[async_trait]
impl Store for Stalls {
    fn describe(&self) -> &'static str {
        "a store that stalls"
    }
    async fn catalog(&self) -> Result<Catalog> {
        self.here().await.catalog().await
    }
    async fn catalog_version(&self) -> Result<u64> {
        self.here().await.catalog_version().await
    }
    async fn create_task(&self, task: NewTask) -> Result<Task> {
        self.here().await.create_task(task).await
    }
    async fn change_task(&self, task: TaskId, change: TaskChange) -> Result<Task> {
        self.here().await.change_task(task, change).await
    }
    async fn remove_task(&self, task: TaskId) -> Result<()> {
        self.here().await.remove_task(task).await
    }
    async fn register_with(&self, model: NewModel, evidence: Evidence) -> Result<Registered> {
        self.here().await.register_with(model, evidence).await
    }
    async fn evidence(&self, model: ModelId) -> Result<Evidence> {
        self.here().await.evidence(model).await
    }
    async fn claim_measuring(&self, wanted: Measuring, now: UnixMicros) -> Result<Option<Measuring>> {
        self.here().await.claim_measuring(wanted, now).await
    }
    async fn measurings(&self) -> Result<Vec<Measuring>> {
        self.here().await.measurings().await
    }
    async fn add_variant(&self, model: ModelId, variant: NewVariant) -> Result<Variant> {
        self.here().await.add_variant(model, variant).await
    }
    async fn promote(&self, model: ModelId, by: Signed) -> Result<VersionChange> {
        self.here().await.promote(model, by).await
    }
    async fn wish(&self, model: ModelId, wish: Wish) -> Result<Option<VersionChange>> {
        self.here().await.wish(model, wish).await
    }
    async fn roll_back(&self, model: ModelId, by: Signed) -> Result<VersionChange> {
        self.here().await.roll_back(model, by).await
    }
    async fn version_changes(&self, task: TaskId, name: &str, limit: u32) -> Result<Vec<VersionChange>> {
        self.here().await.version_changes(task, name, limit).await
    }
    async fn keep_measured(&self, key: &str, profile: &Profile, at: UnixMicros) -> Result<()> {
        self.here().await.keep_measured(key, profile, at).await
    }
    async fn measured(&self, key: &str, since: UnixMicros) -> Result<Option<Profile>> {
        self.here().await.measured(key, since).await
    }
    async fn remove_model(&self, model: ModelId, force: bool, by: Signed) -> Result<()> {
        self.here().await.remove_model(model, force, by).await
    }
    async fn put_profile(&self, variant: VariantId, profile: Profile) -> Result<()> {
        self.here().await.put_profile(variant, profile).await
    }
    async fn mark_stale(&self, stale: StaleProfile) -> Result<bool> {
        self.marks.fetch_add(1, Ordering::Relaxed);
        self.here().await.mark_stale(stale).await
    }
    async fn clear_stale(&self, variant: VariantId, device_class: &str, node: &str) -> Result<bool> {
        self.here().await.clear_stale(variant, device_class, node).await
    }
    async fn put_feedback(&self, given: Vec<Feedback>, expired: UnixMicros) -> Result<Vec<Verdict>> {
        self.here().await.put_feedback(given, expired).await
    }
    async fn live_accuracies(&self) -> Result<Vec<LiveAccuracy>> {
        self.here().await.live_accuracies().await
    }
    async fn flag_accuracy(&self, live: LiveAccuracy, at: UnixMicros, reason: &str) -> Result<bool> {
        self.here().await.flag_accuracy(live, at, reason).await
    }
    async fn clear_flag(&self, variant: VariantId, by: Signed, reason: &str) -> Result<FlagChange> {
        self.here().await.clear_flag(variant, by, reason).await
    }
    async fn flag_changes(&self, variant: VariantId, limit: u32) -> Result<Vec<FlagChange>> {
        self.here().await.flag_changes(variant, limit).await
    }
    async fn register_node(&self, node: NewNode, at: UnixMicros) -> Result<Node> {
        self.here().await.register_node(node, at).await
    }
    async fn node_seen(&self, node: NodeId, state: NodeState, at: UnixMicros) -> Result<()> {
        self.here().await.node_seen(node, state, at).await
    }
    async fn hold_node(
        &self,
        name: &str,
        instance: u64,
        place: &str,
        gone: Option<&Holder>,
    ) -> Result<Holder> {
        self.here().await.hold_node(name, instance, place, gone).await
    }
    async fn release_node(&self, name: &str, instance: u64) -> Result<()> {
        self.here().await.release_node(name, instance).await
    }
    async fn nodes(&self) -> Result<Vec<Node>> {
        self.here().await.nodes().await
    }
    async fn add_replica(&self, variant: VariantId, node: NodeId, device: DeviceIx) -> Result<Replica> {
        self.here().await.add_replica(variant, node, device).await
    }
    async fn remove_replica(&self, replica: ReplicaId) -> Result<()> {
        self.here().await.remove_replica(replica).await
    }
    async fn replicas(&self, node: Option<NodeId>) -> Result<Vec<Replica>> {
        self.here().await.replicas(node).await
    }
    async fn record_transition(&self, change: NewTransition) -> Result<Transition> {
        self.here().await.record_transition(change).await
    }
    async fn transitions(&self, replica: Option<ReplicaId>, limit: u32) -> Result<Vec<Transition>> {
        self.here().await.transitions(replica, limit).await
    }
    async fn forget_transitions(&self, before: UnixMicros) -> Result<u64> {
        self.here().await.forget_transitions(before).await
    }
    fn rented(&self) -> &dyn modelless_store::Machines {
        self.store.rented()
    }
    fn on_trial(&self) -> &dyn modelless_store::Trials {
        self.store.on_trial()
    }
    fn offline(&self) -> &dyn modelless_store::Jobs {
        self.store.offline()
    }
    fn history(&self) -> &dyn modelless_store::Bins {
        self.store.history()
    }
    async fn save_plan(&self, parent: Option<PlanId>, json: String, at: UnixMicros) -> Result<SavePlan> {
        self.here().await.save_plan(parent, json, at).await
    }
    async fn current_plan(&self) -> Result<Option<Plan>> {
        self.here().await.current_plan().await
    }
    async fn note_event(&self, event: NewEvent) -> Result<Event> {
        self.here().await.note_event(event).await
    }
    async fn events(&self, after: Option<u64>, limit: u32) -> Result<Vec<Event>> {
        self.here().await.events(after, limit).await
    }
    async fn plans(&self, limit: u32) -> Result<Vec<Plan>> {
        self.here().await.plans(limit).await
    }
    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        self.here().await.plan(id).await
    }
    async fn secret(&self, name: &str, candidate: [u8; 32]) -> Result<[u8; 32]> {
        self.here().await.secret(name, candidate).await
    }
    fn access(&self) -> &dyn modelless_store::Access {
        self.store.access()
    }
    fn audit(&self) -> &dyn modelless_store::Audit {
        self.store.audit()
    }
    async fn close(&self) {
        self.here().await.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_never_answers_holds_up_neither_serving_nor_the_timer_nor_the_end() {
    let (stall, stalled) = watch::channel(false);
    let store = Arc::new(Stalls::new(stalled));
    let config = Config {
        store_within: Micros::from_millis(200),
        drain: Micros::from_millis(300),
        hung_after: Micros::from_secs(1),
        ..config()
    };
    let mut bed = bed_with(Setup { store: Some(store), config, ..Setup::default() }).await;
    bed.ask(0);
    assert_eq!(bed.wrong_of(1).await, 0);
    stall.send_replace(true);
    // Its own tick asks the store soon, which then hangs; until it has, this would prove nothing.
    bed.handle.catalog_changed();

    for key in 1..200 {
        bed.ask(key);
    }
    assert_eq!(bed.wrong_of(199).await, 0, "serving");

    // What waits behind a batch that hangs and the one that is bound behind that is refused when its time is up,
    // which is the timer's work.
    bed.hang();
    for (key, bound) in [(500, 1), (501, 2)] {
        bed.send(key, LONG, bed.all(), super::distinct(key));
        // Or the next one would share its batch, which is not refused while it runs.
        while bed.handle.batches().len() < bound {
            tokio::task::yield_now().await;
        }
    }
    let asked = Instant::now();
    bed.send(502, Duration::from_millis(300), bed.all(), super::distinct(502));
    let Body::Refused { key: QueryKey(502), refusal: Refusal::TooLate { .. } } = bed.hear().await else {
        panic!("not refused in time")
    };
    assert!(asked.elapsed() < Duration::from_millis(900), "{:?}", asked.elapsed());

    let ending = Instant::now();
    bed.stop.cancel();
    timeout(LONG, bed.service).await.expect("it ends in time").expect("it does not panic");
    // The hanging batch has its drain, the store its own bound.
    assert!(ending.elapsed() < Duration::from_secs(5), "{:?}", ending.elapsed());
}
