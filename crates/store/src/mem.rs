//! The fake: everything in memory, gone with the process. For tests of what uses a store; it passes the real ones' suite.
//!
//! It favours being plainly right over being quick: a change is made on a copy of everything, which takes the
//! place of the original only if it went well.

use crate::access::{Access, Grant, Key, Owner, Quota};
use crate::api::Store;
use crate::audit::{Audit, Entry};
use crate::bins::Bins;
use crate::error::{Error, Result};
use crate::events::{Event, NewEvent};
use crate::jobs::Jobs;
use crate::learnt::{Feedback, FlagChange, LiveAccuracy, Note, StaleProfile, Verdict, measured_otherwise};
use crate::machines::Machines;
use crate::policies::{Policy, PolicyOf};
use crate::records::{
    App, Catalog, Evidence, Holder, Measuring, NewModel, NewNode, NewTask, NewTransition, NewVariant, Node,
    NodeState, Plan, Registered, Replica, SavePlan, TaskChange, Tenant, Transition, UnixMicros,
};
use crate::trials::{Trial, Trials, ended};
use crate::versions::{Signed, VersionAction, VersionChange, Wish};
use crate::{MEASURED_KEPT, check};
use async_trait::async_trait;
use modelless_types::{
    AppId, DeviceIx, Model, ModelId, NodeId, PlanId, Profile, ReplicaId, ReplicaState, Task, TaskId,
    TenantId, Variant, VariantId,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

mod access;
mod audit;
mod bins;
mod catalog;
mod events;
mod jobs;
mod learnt;
mod machines;
mod trials;
mod versions;

/// A store in memory. Share it in an `Arc`.
pub struct MemStore(Mutex<State>);

#[derive(Clone, Default)]
struct State {
    closed: bool,
    catalog: Catalog,
    nodes: Vec<Node>,
    holders: BTreeMap<String, Holder>,
    replicas: BTreeMap<ReplicaId, Replica>,
    transitions: Vec<Transition>,
    plans: Vec<Plan>,
    rented: machines::Kept,
    jobs: jobs::Kept,
    /// Those that ended.
    trials: Vec<Trial>,
    events: Vec<Event>,
    asked: bins::Kept,
    keys: BTreeMap<String, [u8; 32]>,
    /// Of applications.
    access: Vec<Key>,
    quotas: BTreeMap<Owner, Quota>,
    policies: BTreeMap<PolicyOf, Policy>,
    /// Sorted.
    grants: Vec<Grant>,
    /// Sizes, and when they were brought.
    uploads: BTreeMap<(TenantId, String), (u64, UnixMicros)>,
    ordinals: BTreeMap<TaskId, usize>,
    evidence: BTreeMap<ModelId, Evidence>,
    measurings: BTreeMap<(VariantId, String), Measuring>,
    version_changes: Vec<VersionChange>,
    /// Oldest first.
    measured: Vec<(String, Profile, UnixMicros)>,
    /// Who answered a query, when, and whether that was right; and the round in which it was counted.
    feedback: BTreeMap<String, (Feedback, u64)>,
    flag_changes: Vec<FlagChange>,
    audit: Vec<Entry>,
    /// The last id given out, by kind of thing.
    last: BTreeMap<&'static str, u64>,
}

impl MemStore {
    /// An empty one, with the default tenant and application.
    pub fn new() -> Self {
        let name = || "default".to_owned();
        let catalog = Catalog {
            tenants: vec![Tenant { id: TenantId::DEFAULT, name: name() }],
            apps: vec![App { id: AppId::DEFAULT, tenant: TenantId::DEFAULT, name: name() }],
            ..Catalog::default()
        };
        Self(Mutex::new(State { catalog, ..State::default() }))
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T> {
        // A panic in a change leaves the original as it was, so a poisoned lock guards nothing broken.
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.open()?;
        Ok(look(&state))
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.open()?;
        let mut copy = state.clone();
        let result = change(&mut copy)?;
        *state = copy;
        Ok(result)
    }

    /// A change of the catalog.
    fn register<T>(&self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.write(|state| {
            state.catalog.version += 1;
            change(state)
        })
    }
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemStore") // not its keys
    }
}

impl State {
    fn open(&self) -> Result<()> {
        if self.closed {
            return Err(Error::Unreachable {
                database: "memory".to_owned(),
                why: "it was closed".to_owned(),
            });
        }
        Ok(())
    }

    fn next(&mut self, what: &'static str) -> u64 {
        let last = self.last.entry(what).or_default();
        *last += 1;
        *last
    }

    fn next_id(&mut self, what: &'static str) -> Result<u32> {
        u32::try_from(self.next(what)).map_err(|_| Error::invalid(what, "no number is left for another"))
    }

    fn task(&self, id: TaskId) -> Result<&Task> {
        self.catalog.tasks.iter().find(|task| task.id == id).ok_or_else(|| Error::not_found("task", id))
    }

    fn variant(&mut self, id: VariantId) -> Result<&mut Variant> {
        let found = self.catalog.variants.iter_mut().find(|variant| variant.id == id);
        found.ok_or_else(|| Error::not_found("variant", id))
    }

    fn node(&mut self, id: NodeId) -> Result<&mut Node> {
        self.nodes.iter_mut().find(|node| node.id == id).ok_or_else(|| Error::not_found("node", id))
    }

    fn replica(&mut self, id: ReplicaId) -> Result<&mut Replica> {
        self.replicas.get_mut(&id).ok_or_else(|| Error::not_found("replica", id))
    }
}

#[async_trait]
impl Store for MemStore {
    fn describe(&self) -> &'static str {
        "memory"
    }

    async fn catalog(&self) -> Result<Catalog> {
        self.read(|state| state.catalog.clone())
    }

    async fn catalog_version(&self) -> Result<u64> {
        self.read(|state| state.catalog.version)
    }

    async fn create_task(&self, new: NewTask) -> Result<Task> {
        let wanted = check::task(&new)?;
        self.register(|state| {
            if !state.catalog.tenants.iter().any(|tenant| tenant.id == new.tenant) {
                return Err(Error::not_found("tenant", new.tenant));
            }
            if state.catalog.task_named(new.tenant, &new.name).is_some() {
                return Err(Error::exists("task", new.name));
            }
            let space = state.space(new.tenant, wanted)?;
            let task = new.numbered(TaskId(state.next_id("task")?), space);
            state.catalog.tasks.push(task.clone());
            Ok(task)
        })
    }

    async fn change_task(&self, id: TaskId, change: TaskChange) -> Result<Task> {
        self.write(|state| {
            let task = state.catalog.tasks.iter_mut().find(|task| task.id == id);
            let task = task.ok_or_else(|| Error::not_found("task", id))?;
            let Some(changed) = change.of(task) else { return Ok(task.clone()) };
            task.clone_from(&changed);
            state.catalog.version += 1;
            Ok(changed)
        })
    }

    async fn remove_task(&self, id: TaskId) -> Result<()> {
        self.register(|state| state.remove_task(id))
    }

    async fn register_with(&self, new: NewModel, evidence: Evidence) -> Result<Registered> {
        check::model(&new)?;
        check::evidence(&evidence)?;
        self.register(|state| {
            let task = state.task(new.task)?;
            check::owner(task, new.tenant)?;
            let default_space = task.default_space;
            let same = state.catalog.models_of(new.task).any(|known| {
                (known.tenant, &known.name, known.version) == (new.tenant, &new.name, new.version)
            });
            if same {
                return Err(Error::exists("model", format!("{} version {}", new.name, new.version)));
            }
            let space = match &new.space {
                Some(space) => state.space(new.tenant, space.clone())?,
                None => default_space,
            };
            let promote = new.promote || state.promoted(new.task, new.tenant, &new.name).is_empty();
            let promoted = if promote { state.catalog.version } else { 0 };
            let by = new.by.clone();
            let (model, variants) = new.numbered(ModelId(state.next_id("model")?), space, promoted);
            if promote {
                let end = ended(format!("version {} is the default now", model.version), &by);
                state.overtaken(&model, |_| true, end)?;
            }
            state.noted(&model, VersionAction::Registered, by, |state| {
                state.catalog.models.push(model.clone());
            });
            let variants = state.add_variants(model.task, model.id, variants)?;
            let evidence = if promote { Evidence { promote: None, ..evidence } } else { evidence };
            state.evidence.insert(model.id, evidence);
            Ok(Registered { model, variants })
        })
    }

    async fn add_variant(&self, id: ModelId, new: NewVariant) -> Result<Variant> {
        check::variant(&new)?;
        self.register(|state| {
            let model = state.catalog.models.iter().find(|model| model.id == id);
            let task = model.ok_or_else(|| Error::not_found("model", id))?.task;
            Ok(state.add_variants(task, id, vec![new])?.remove(0))
        })
    }

    async fn promote(&self, id: ModelId, by: Signed) -> Result<VersionChange> {
        check::signed(&by)?;
        self.write(|state| state.promote(id, by))
    }

    async fn wish(&self, id: ModelId, wish: Wish) -> Result<Option<VersionChange>> {
        self.write(|state| state.wish(id, wish))
    }

    async fn roll_back(&self, id: ModelId, by: Signed) -> Result<VersionChange> {
        check::signed(&by)?;
        self.register(|state| state.roll_back(id, by))
    }

    async fn version_changes(&self, task: TaskId, name: &str, limit: u32) -> Result<Vec<VersionChange>> {
        let wanted = |known: &&VersionChange| known.task == task && known.name == name;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.read(|state| state.version_changes.iter().rev().filter(wanted).take(limit).cloned().collect())
    }

    async fn keep_measured(&self, key: &str, profile: &Profile, at: UnixMicros) -> Result<()> {
        check::measured(key, profile, at)?;
        self.write(|state| {
            state.measured.retain(|(known, ..)| known != key);
            state.measured.push((key.to_owned(), profile.clone(), at));
            let most = usize::try_from(MEASURED_KEPT).unwrap_or(usize::MAX);
            let over = state.measured.len().saturating_sub(most);
            state.measured.drain(..over);
            Ok(())
        })
    }

    async fn measured(&self, key: &str, since: UnixMicros) -> Result<Option<Profile>> {
        check::number("time", since.0)?;
        self.read(|state| {
            let found = state.measured.iter().find(|(known, _, at)| known == key && *at >= since);
            found.map(|(_, profile, _)| profile.clone())
        })
    }

    async fn remove_model(&self, id: ModelId, force: bool, by: Signed) -> Result<()> {
        check::signed(&by)?;
        self.register(|state| {
            let model = state.model(id)?;
            let name = format!("{} version {}", model.name, model.version);
            let promoted = state.promoted(model.task, model.tenant, &model.name);
            let same = |known: &Model| {
                (known.task, known.tenant, &known.name) == (model.task, model.tenant, &model.name)
            };
            let alone = state.catalog.models.iter().filter(|known| same(known)).count() == 1;
            if promoted.first().is_some_and(|(_, of)| *of == id) && !alone && !force {
                return Err(Error::default_in_use(name, promoted.get(1).map(|(version, _)| *version)));
            }
            let variants: Vec<VariantId> = state.catalog.variants_of(id).map(|variant| variant.id).collect();
            let busy =
                state.replicas.values().find(|replica| variants.contains(&replica.variant) && replica.busy());
            if let Some(replica) = busy.copied().filter(|_| !force) {
                let node = state.node(replica.node)?.about.name.clone();
                return Err(Error::model_in_use(name, replica.id, replica.state, &node));
            }
            state.replicas.retain(|_, replica| !(variants.contains(&replica.variant) && replica.at_rest()));
            state.measurings.retain(|(variant, _), _| !variants.contains(variant));
            state.evidence.remove(&id);
            state.feedback.retain(|_, (given, _)| !variants.contains(&given.variant));
            state.flag_changes.retain(|change| !variants.contains(&change.variant));
            state.catalog.stale.retain(|stale| !variants.contains(&stale.variant));
            state.catalog.live.retain(|live| !variants.contains(&live.variant));
            state.catalog.variants.retain(|variant| variant.model != id);
            let why = format!("version {} was removed", model.version);
            state.overtaken(&model, |trial| trial.candidate == id || trial.against == id, ended(why, &by))?;
            state.noted(&model, VersionAction::Removed, by, |state| {
                state.catalog.models.retain(|model| model.id != id);
            });
            Ok(())
        })
    }

    async fn evidence(&self, model: ModelId) -> Result<Evidence> {
        self.read(|state| state.evidence.get(&model).cloned().unwrap_or_default())
    }

    async fn claim_measuring(&self, wanted: Measuring, now: UnixMicros) -> Result<Option<Measuring>> {
        check::measuring(&wanted, now)?;
        self.write(|state| {
            let there = state.variant(wanted.variant)?.profile_on(&wanted.device_class);
            let well = there.is_some_and(|there| !there.is_estimated() && !there.is_provisional());
            if well && state.catalog.stale(wanted.variant, &wanted.device_class).is_none() {
                return Ok(None);
            }
            let place = (wanted.variant, wanted.device_class.clone());
            let stands = state.measurings.entry(place).or_insert_with(|| wanted.clone());
            if stands.until <= now || stands.node == wanted.node {
                *stands = wanted;
            }
            Ok(Some(stands.clone()))
        })
    }

    async fn measurings(&self) -> Result<Vec<Measuring>> {
        self.read(|state| state.measurings.values().cloned().collect())
    }

    async fn put_profile(&self, variant: VariantId, profile: Profile) -> Result<()> {
        check::profile(&profile)?;
        self.register(|state| {
            let before = state.variant(variant)?.profile_on(&profile.device_class).cloned();
            if profile.is_estimated() {
                if before.is_some_and(|there| !there.is_estimated()) {
                    return Ok(());
                }
            } else {
                if measured_otherwise(before.as_ref(), &profile) {
                    state.begin_anew(variant, Note::remeasured(&profile));
                }
                state.measurings.remove(&(variant, profile.device_class.clone()));
            }
            state.catalog.stale.retain(|s| (s.variant, &s.device_class) != (variant, &profile.device_class));
            let profiles = &mut state.variant(variant)?.profiles;
            profiles.retain(|known| known.device_class != profile.device_class);
            profiles.push(profile);
            profiles.sort_by(|a, b| a.device_class.cmp(&b.device_class));
            Ok(())
        })
    }

    async fn mark_stale(&self, stale: StaleProfile) -> Result<bool> {
        check::stale(&stale)?;
        self.write(|state| Ok(state.mark_stale(stale)))
    }

    async fn clear_stale(&self, variant: VariantId, device_class: &str, node: &str) -> Result<bool> {
        self.write(|state| Ok(state.clear_stale(variant, device_class, node)))
    }

    async fn put_feedback(&self, given: Vec<Feedback>, expired: UnixMicros) -> Result<Vec<Verdict>> {
        given.iter().try_for_each(check::feedback)?;
        self.write(|state| {
            state.feedback.retain(|_, known| known.0.answered >= expired);
            Ok(given.into_iter().map(|one| state.put_feedback(one)).collect())
        })
    }

    async fn live_accuracies(&self) -> Result<Vec<LiveAccuracy>> {
        self.read(|state| state.catalog.live.clone())
    }

    async fn flag_accuracy(&self, live: LiveAccuracy, at: UnixMicros, reason: &str) -> Result<bool> {
        check::number("time", at.0)?;
        check::reason(reason)?;
        self.write(|state| Ok(state.flag_accuracy(live, at, reason)))
    }

    async fn clear_flag(&self, variant: VariantId, by: Signed, reason: &str) -> Result<FlagChange> {
        check::signed(&by)?;
        check::reason(reason)?;
        self.register(|state| state.clear_flag(variant, by, reason))
    }

    async fn flag_changes(&self, variant: VariantId, limit: u32) -> Result<Vec<FlagChange>> {
        let wanted = |known: &&FlagChange| known.variant == variant;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.read(|state| state.flag_changes.iter().rev().filter(wanted).take(limit).cloned().collect())
    }

    async fn register_node(&self, new: NewNode, at: UnixMicros) -> Result<Node> {
        check::node(&new, at)?;
        self.write(|state| {
            if let Some(known) = state.nodes.iter_mut().find(|node| node.about.name == new.name) {
                let last_seen = known.last_seen.max(at);
                *known = Node { id: known.id, about: new, state: NodeState::Up, last_seen };
                let node = known.clone();
                state.note_node(&node, NodeState::Up, at);
                return Ok(node);
            }
            let id = NodeId(state.next_id("node")?);
            let node = Node { id, about: new, state: NodeState::Up, last_seen: at };
            state.nodes.push(node.clone());
            state.note_node(&node, NodeState::Up, at);
            Ok(node)
        })
    }

    async fn node_seen(&self, id: NodeId, stands: NodeState, at: UnixMicros) -> Result<()> {
        check::number("time", at.0)?;
        self.write(|state| {
            let node = state.node(id)?;
            let changes = node.state != stands;
            node.state = stands;
            node.last_seen = node.last_seen.max(at);
            if changes {
                let node = node.clone();
                state.note_node(&node, stands, at);
            }
            Ok(())
        })
    }

    async fn hold_node(
        &self,
        name: &str,
        instance: u64,
        place: &str,
        gone: Option<&Holder>,
    ) -> Result<Holder> {
        check::holder(name, instance, place)?;
        self.write(|state| {
            let ours = || Holder { instance, beat: 0, place: place.to_owned() };
            let holder = state.holders.entry(name.to_owned()).or_insert_with(ours);
            if gone == Some(&*holder) {
                *holder = Holder { beat: holder.beat, ..ours() };
            }
            if holder.instance == instance {
                holder.beat += 1;
            }
            Ok(holder.clone())
        })
    }

    async fn release_node(&self, name: &str, instance: u64) -> Result<()> {
        self.write(|state| {
            if state.holders.get(name).is_some_and(|holder| holder.instance == instance) {
                state.holders.remove(name);
            }
            Ok(())
        })
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        self.read(|state| state.nodes.clone())
    }

    async fn add_replica(&self, variant: VariantId, node: NodeId, device: DeviceIx) -> Result<Replica> {
        self.write(|state| {
            state.variant(variant)?;
            state.node(node)?;
            let id = ReplicaId(state.next("replica"));
            let replica = Replica { id, variant, node, device, state: ReplicaState::Inactive };
            state.replicas.insert(id, replica);
            Ok(replica)
        })
    }

    async fn remove_replica(&self, id: ReplicaId) -> Result<()> {
        self.write(|state| {
            state.replica(id)?.must_be_at_rest()?;
            state.replicas.remove(&id);
            Ok(())
        })
    }

    async fn replicas(&self, node: Option<NodeId>) -> Result<Vec<Replica>> {
        let wanted = |replica: &&Replica| node.is_none_or(|node| replica.node == node);
        self.read(|state| state.replicas.values().filter(wanted).copied().collect())
    }

    async fn record_transition(&self, change: NewTransition) -> Result<Transition> {
        let change = check::transition(change)?;
        self.write(|state| state.move_replica(change))
    }

    async fn transitions(&self, replica: Option<ReplicaId>, limit: u32) -> Result<Vec<Transition>> {
        let wanted = |known: &&Transition| replica.is_none_or(|replica| known.change.replica == replica);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.read(|state| state.transitions.iter().rev().filter(wanted).take(limit).cloned().collect())
    }

    async fn forget_transitions(&self, before: UnixMicros) -> Result<u64> {
        self.write(|state| {
            let had = state.transitions.len();
            state.transitions.retain(|known| known.change.at >= before);
            Ok((had - state.transitions.len()) as u64)
        })
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
        let event = check::event(event)?;
        self.write(|state| Ok(state.note(event)))
    }

    async fn events(&self, after: Option<u64>, limit: u32) -> Result<Vec<Event>> {
        self.read(|state| state.events(after, limit))
    }

    async fn save_plan(&self, parent: Option<PlanId>, json: String, at: UnixMicros) -> Result<SavePlan> {
        check::json("plan", &json)?;
        check::number("time", at.0)?;
        self.write(|state| Ok(state.save_plan(parent, json, at)))
    }

    async fn current_plan(&self) -> Result<Option<Plan>> {
        self.read(|state| state.plans.last().cloned())
    }

    async fn plans(&self, limit: u32) -> Result<Vec<Plan>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.read(|state| state.plans.iter().rev().take(limit).cloned().collect())
    }

    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        self.read(|state| state.plans.iter().find(|plan| plan.id == id).cloned())
    }

    async fn secret(&self, name: &str, candidate: [u8; 32]) -> Result<[u8; 32]> {
        check::name("key", name)?;
        self.write(|state| Ok(*state.keys.entry(name.to_owned()).or_insert(candidate)))
    }

    fn access(&self) -> &dyn Access {
        self
    }

    fn audit(&self) -> &dyn Audit {
        self
    }

    async fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }
}
