//! The slow path: looks at what there is, plans, saves the plan, tells the nodes.
//!
//! Nothing here is on a query's path, and nothing depends on it to keep serving: nodes keep the last plan they were
//! told. Each round re-reads everything and is idempotent, so it may be killed at any line. A plan is saved by
//! compare-and-set on the plan it was made from, so two schedulers are safe: the one that loses throws its plan away
//! and looks again. What to pin is decided in `decision::plan`; this crate only carries it out.
#![warn(missing_docs)]

mod absent;
pub mod machines;
mod past;
mod telling;
mod trials;

use absent::Absent;
use modelless_decision::baseline::Rules;
use modelless_decision::plan::{Broken, Plan, check, plan};
use modelless_live::Member;
use modelless_planning::{Asked, aheads, input};
use modelless_store::{Catalog, NewEvent, PlanId, SavePlan, Store, UnixMicros};
use modelless_types::{NodeId, Time, VariantId};
use modelless_wire::{NodeLink, NodeStatus, ToNode};
use past::Past;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use trials::Trials;

/// How often and how boldly to plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Between rounds, when nothing changes meanwhile.
    pub interval_ms: u64,
    /// Share of each device's memory left to the node for loads on demand, in thousandths.
    pub discretionary_permille: u16,
    /// Whose rules say how many machines there should be: `modelless`, or `infaas` as a baseline to compare with.
    pub rules: Rules,
}

impl Default for Config {
    fn default() -> Self {
        Self { interval_ms: 1_000, discretionary_permille: 250, rules: Rules::default() }
    }
}

/// A round's reads and its one write take milliseconds. What is not answered for so long is not answered any more, since its
/// connection is gone; longer than a pool waits for a connection, which has a better error of its own.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// What the store answers, or that it does not.
async fn answered<T>(asked: impl Future<Output = modelless_store::Result<T>>) -> Result<T, Error> {
    Ok(timeout(ANSWER_WITHIN, asked).await.map_err(|_| Error::TooLong)??)
}

/// Tells what a plan changed. What is not told here stands in the plans all the same.
async fn note(store: &dyn Store, events: Vec<NewEvent>) {
    for event in events {
        if let Err(error) = answered(store.note_event(event)).await {
            tracing::warn!(%error, "what the plan changes is not told");
        }
    }
}

/// Rounds that follow one another more quickly would keep the database busy for nothing.
const INTERVAL_LEAST_MS: u64 = 10;

impl Config {
    /// Refuses what cannot be done.
    pub fn check(&self) -> Result<(), String> {
        let Self { interval_ms, discretionary_permille, rules: _ } = self;
        if *interval_ms < INTERVAL_LEAST_MS {
            return Err(format!(
                "`scheduler.interval_ms` is {interval_ms}; expected {INTERVAL_LEAST_MS} or more, such as 1000"
            ));
        }
        if *discretionary_permille > 1_000 {
            return Err(format!(
                "`scheduler.discretionary_permille` is {discretionary_permille}; expected at most 1000, which is all \
                 of a device's memory"
            ));
        }
        Ok(())
    }
}

/// Why a round came to nothing. The next one tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store did not answer or refused.
    #[error("the plan cannot be read or saved: {0}")]
    Store(#[from] modelless_store::Error),
    /// Waited for longer than any answer takes: a connection may be cut without a word.
    #[error("the store did not answer within {} s", ANSWER_WITHIN.as_secs())]
    TooLong,
    /// The saved plan is not one of ours. It is left alone: a scheduler of another version may be at work, and the two would
    /// undo each other's plans.
    #[error(
        "{id} in the store cannot be read as a plan ({why}); nodes keep it. Run schedulers of one version, or delete it \
         from the table `plans` to have a new one made"
    )]
    Unreadable {
        /// Which plan.
        id: PlanId,
        /// What is wrong with it.
        why: String,
    },
    /// The plan that was made must not be obeyed.
    #[error(
        "the plan that was made is not saved, since {0}; this is a bug, please report it. Nodes keep the last plan"
    )]
    Broken(String),
}

/// The first of the rules that a plan breaks, and how many more.
fn refused(broken: &[Broken]) -> Result<(), Error> {
    match broken {
        [] => Ok(()),
        [only] => Err(Error::Broken(only.to_string())),
        [first, rest @ ..] => Err(Error::Broken(format!("{first} (and {} more)", rest.len()))),
    }
}

/// A node as the scheduler reaches it.
#[derive(Clone)]
pub struct Node {
    /// What it makes known of itself.
    pub status: watch::Receiver<NodeStatus>,
    /// Where its pins go.
    pub link: Arc<dyn NodeLink>,
}

impl Node {
    fn id(&self) -> NodeId {
        self.status.borrow().node
    }

    /// Its status ends with its connection.
    fn stands(&self) -> bool {
        self.status.has_changed().is_ok()
    }
}

/// Wakes the scheduler before its interval is over, and tells it of nodes.
#[derive(Clone, Default)]
pub struct Handle {
    wake: Arc<Notify>,
    /// Nodes that it has not looked at yet.
    joined: Arc<Mutex<Vec<Node>>>,
    /// Who is there, with what is asked of gateways.
    members: Arc<Mutex<Vec<Member>>>,
    /// Whether the live state answers; where nobody tells, it does.
    live: Arc<Mutex<Option<watch::Receiver<bool>>>>,
    /// The last plan that was saved here.
    saved: Arc<watch::Sender<Option<PlanId>>>,
}

impl Handle {
    /// Something that plans depend on changed.
    pub fn catalog_changed(&self) {
        self.wake.notify_one();
    }

    /// Who is there, as the live state tells: what is asked of gateways decides what is pinned first where room is short.
    pub fn set_members(&self, members: Vec<Member>) {
        *self.members.lock().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// Whether the live state answers, from now on: while it does not, demand stands still and nobody is taken for gone.
    pub fn set_live(&self, answers: watch::Receiver<bool>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(answers);
    }

    /// Who is there, and whether that can be known at the moment.
    fn members(&self) -> (Vec<Member>, bool) {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (members, self.live_answers())
    }

    fn live_answers(&self) -> bool {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().is_none_or(|answers| *answers.borrow())
    }

    /// Follows the plans that this scheduler saves.
    pub fn saved(&self) -> watch::Receiver<Option<PlanId>> {
        self.saved.subscribe()
    }

    /// A node is there, or there again. It is told its pins, whatever it was told before.
    pub fn add_node(&self, node: Node) {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).push(node);
        self.wake.notify_one();
    }
}

/// The scheduler. [`Service::run`] until it is cancelled.
pub struct Service {
    config: Config,
    store: Arc<dyn Store>,
    nodes: Vec<Node>,
    /// Older connections to the same nodes, the newest last.
    spare: Vec<Node>,
    handle: Handle,
    /// Which plan each node was told last. Each is told, also where it changes nothing: one that comes late must be known as older.
    told: BTreeMap<NodeId, PlanId>,
    asked: Asked,
    absent: Absent,
    /// Of new versions.
    trials: Trials,
    /// Its name, in what it tells.
    who: String,
    /// When it last looked at demand.
    looked: Instant,
    /// Of earlier days.
    past: Past,
    /// By the clock on the wall, which earlier days are told by.
    wall: Wall,
}

/// A clock on the wall.
type Wall = Arc<dyn Fn() -> UnixMicros + Send + Sync>;

/// A scheduler for these nodes.
pub fn build(config: Config, store: Arc<dyn Store>, nodes: Vec<Node>) -> (Service, Handle) {
    let handle = Handle::default();
    let (told, asked, looked) = (BTreeMap::new(), Asked::default(), Instant::now());
    let (spare, absent, trials) = (Vec::new(), Absent::default(), Trials::default());
    let who = "scheduler".to_owned();
    let (past, wall): (_, Wall) = (Past::default(), Arc::new(|| UnixMicros::of(SystemTime::now())));
    let service = Service {
        config,
        store,
        nodes,
        spare,
        handle: handle.clone(),
        told,
        asked,
        absent,
        trials,
        who,
        looked,
        past,
        wall,
    };
    (service, handle)
}

impl Service {
    /// The same under a name, which its events tell.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { who: format!("scheduler {name}"), ..self }
    }

    /// The same by another clock on the wall.
    #[must_use]
    pub fn by_clock(self, wall: impl Fn() -> UnixMicros + Send + Sync + 'static) -> Self {
        Self { wall: Arc::new(wall), ..self }
    }

    /// Plans now, then every interval and whenever woken. A failed round is logged and tried again.
    pub async fn run(mut self, stop: CancellationToken) {
        let interval = Duration::from_millis(self.config.interval_ms.max(INTERVAL_LEAST_MS));
        loop {
            let round = tokio::select! {
                biased;
                () = stop.cancelled() => return, // also out of one whose store does not answer
                round = self.round() => round,
            };
            if let Err(error) = round {
                tracing::warn!(%error, "planning failed; nodes keep the last plan");
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.handle.wake.notified() => {}
                () = tokio::time::sleep(interval) => {}
            }
        }
    }

    /// One round: observe, plan, save, tell, and judge what is tried. Saving the same pins again is left out.
    pub async fn round(&mut self) -> Result<(), Error> {
        self.look_at_nodes();
        let now = Time((self.wall)().0);
        let (members, answers) = self.look_at_demand();
        self.past.look(&*self.store, now, answers.then_some(&members[..])).await;
        let catalog = answered(self.store.catalog()).await?;
        let planned = self.plan(&catalog, (&members, answers), now).await;
        // Whatever came of the plan: a bad version must not keep its share because of it.
        let judged = self.end_trials(&members, &catalog).await;
        planned.and(judged)
    }

    async fn plan(
        &mut self,
        catalog: &Catalog,
        (members, answers): (&[Member], bool),
        now: Time,
    ) -> Result<(), Error> {
        if self.nodes.is_empty() {
            return Ok(()); // a plan for nobody would only undo the one there is
        }
        let statuses: Vec<NodeStatus> = self.nodes.iter().map(|node| node.status.borrow().clone()).collect();
        let saved = answered(self.store.current_plan()).await?;
        let before = match &saved {
            Some(saved) => serde_json::from_str(&saved.json)
                .map_err(|err| Error::Unreadable { id: saved.id, why: err.to_string() })?,
            None => Plan::default(),
        };
        let forecast = self.past.forecast(&*self.store, now).await;
        let aheads = aheads(forecast, catalog, now);
        let share = self.config.discretionary_permille;
        self.asked.idle.read(&before);
        let input = input(catalog, &statuses, share, (&self.asked, &aheads));
        let mut next = plan(&input, &before);
        let reached = statuses.iter().map(|status| status.node).collect();
        self.absent.carry_over(&mut next, &before, &reached, answers.then_some(members));
        let known: BTreeSet<VariantId> = catalog.variants.iter().map(|variant| variant.id).collect();
        next.pins.retain(|pin| known.contains(&pin.variant)); // removed since it was pinned where nobody is reached
        next.serves.retain(|pin| known.contains(&pin.variant));
        next.discretionary_permille = Some(share);
        refused(&check(&input, &before, &next))?;
        let mut id = saved.as_ref().map(|plan| plan.id);
        if saved.is_none() || !next.asks_the_same(&before) {
            let json = serde_json::to_string(&next).expect("a plan is plain data; this is a bug");
            let at = UnixMicros::of(SystemTime::now());
            match answered(self.store.save_plan(saved.map(|plan| plan.id), json, at)).await? {
                SavePlan::Saved(new) => {
                    tracing::info!(id = %new, pins = next.pins.len(), "new plan");
                    self.handle.saved.send_replace(Some(new));
                    id = Some(new);
                    let events = telling::events((new, &before, &next), (catalog, &statuses), &self.who, at);
                    note(&*self.store, events).await;
                }
                SavePlan::Lost { .. } => {
                    self.handle.wake.notify_one(); // look again at once: another scheduler was first
                    return Ok(());
                }
            }
        }
        if let Some(id) = id {
            self.tell(id, &next);
        }
        Ok(())
    }

    async fn end_trials(&mut self, members: &[Member], catalog: &Catalog) -> Result<(), Error> {
        self.trials.look(members, catalog);
        let now = UnixMicros::of(SystemTime::now());
        for end in self.trials.ends(catalog, &self.who, now) {
            let (trial, state, why) = (end.trial, end.state.name(), end.ended.cause.clone());
            if answered(self.store.on_trial().end_trial(end)).await?.is_some() {
                tracing::info!(%trial, state, why, "a trial of a new version ended");
                self.handle.wake.notify_one(); // what is pinned may be another thing now
            }
        }
        Ok(())
    }

    /// Who is there, and whether that can be known at the moment.
    fn look_at_demand(&mut self) -> (Vec<Member>, bool) {
        let (members, answers) = self.handle.members();
        let now = Instant::now();
        let after = now - std::mem::replace(&mut self.looked, now);
        if answers {
            self.asked.look(&members, after);
        } else {
            self.asked.stand_still(after);
        }
        (members, answers)
    }

    /// Those that are gone are forgotten; one that is there again has forgotten what it was told.
    fn look_at_nodes(&mut self) {
        let joined = std::mem::take(&mut *self.handle.joined.lock().unwrap_or_else(PoisonError::into_inner));
        for node in joined {
            let id = node.id();
            let (older, others) =
                std::mem::take(&mut self.nodes).into_iter().partition(|known| known.id() == id);
            self.nodes = others;
            self.spare.extend::<Vec<_>>(older);
            self.told.remove(&id);
            self.nodes.push(node);
        }
        self.nodes.retain(Node::stands);
        self.spare.retain(Node::stands);
        // The newest connection to a node may be ended as one too many, while an older one stands.
        while let Some(at) =
            self.spare.iter().rposition(|spare| self.nodes.iter().all(|node| node.id() != spare.id()))
        {
            let node = self.spare.remove(at);
            self.told.remove(&node.id());
            self.nodes.push(node);
        }
    }

    fn tell(&mut self, id: PlanId, plan: &Plan) {
        for node in &self.nodes {
            let (here, link) = (node.id(), &node.link);
            if self.told.insert(here, id) != Some(id) {
                let pins = plan.pins.iter().filter(|pin| pin.node == here);
                let pins = pins.map(|pin| (pin.device, pin.variant)).collect();
                link.send(ToNode::Pin { plan: id, pins });
            }
        }
    }
}

#[cfg(test)]
mod tests;
