//! Why: for any goals, every candidate and what spoke for or against it.
//!
//! The same filter and the same estimates as routing, taken one by one instead of in a hurry. It shows what would be
//! decided for a query that came now, or what was decided for one that has ended, from what was seen then; the node still binds the
//! variant when it runs it, by its own backlog.

use crate::admission::{self, Admitted};
use crate::estimate::Moments;
use crate::query::Query;
use crate::route::{
    Choice, Did, Gathering, LoadView, NodeIx, Offer, Ready, Seen, Snapshot, TaskInfo, VariantInfo, Verdict,
    pick_elsewhere,
};
use crate::route::{at_once, has_time_behind_all};
use alloc::vec::Vec;
use modelless_types::{
    Accuracy, AppId, Bytes, ClassId, CostPer1k, Goals, Micros, NodeId, Prefer, PricePerHour, QueryKey,
    Refusal, TaskId, TenantId, Time, VariantId,
};
use serde::Serialize;

/// What spoke against a candidate, or for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Finding {
    /// It would be taken.
    Chosen,
    /// Its node hears of the query, and whichever is first to claim it has it.
    Announced,
    /// It meets the goals; another is better by what the query prefers.
    LessPreferred,
    /// It answers in another output space than the query asks for.
    OtherSpace,
    /// It is of a version that is not the default, and the query does not pin it.
    Candidate,
    /// The query pins something else.
    NotPinned,
    /// It is measured below the floor.
    BelowFloor,
    /// It takes longer than asked, even on an idle node.
    TooSlow,
    /// It would be fast enough were there no queue.
    QueueTooLong,
    /// It costs more than asked, at any batch size.
    TooDear,
    /// It is not in memory and loading it takes longer than asked.
    NotLoaded {
        /// How long loading takes.
        ready_in: Micros,
    },
    /// It meets the goals but would have to be loaded first.
    WouldLoad {
        /// How long loading takes.
        ready_in: Micros,
    },
    /// Its node has as much as it takes; the query would wait at the gateway.
    NoCredit,
    /// Its node has given the query back, so it goes elsewhere.
    GaveBack,
    /// No node can run it.
    NoNode,
}

/// A variant on a node, or on none.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// Which variant.
    pub variant: VariantId,
    /// Where; `None` when no node could run it.
    pub node: Option<NodeId>,
    /// What floors are compared with.
    pub accuracy: Accuracy,
    /// From now to the answer, 99th percentile, waiting included.
    pub latency: Option<Micros>,
    /// The part of it that is waiting (mean).
    pub wait: Option<Micros>,
    /// Price alone in a batch.
    pub cost: Option<CostPer1k>,
    /// What an hour of what it computes on costs: of the node's lane, or of the server behind it.
    pub price: Option<PricePerHour>,
    /// What spoke for or against it.
    pub finding: Finding,
}

/// What would be decided, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// The goals that hold, defaults filled in; or why they cannot be met.
    pub admitted: Result<Admitted, Refusal>,
    /// What routing would do; `None` when not admitted.
    pub verdict: Option<Verdict>,
    /// Everything there is, best accuracy first.
    pub candidates: Vec<Candidate>,
}

/// Explains what would be decided for a query with these goals that came now, where these batches gather that it may go with.
pub fn explain(
    gathering: &Gathering,
    (snapshot, load): (&mut Snapshot, &mut LoadView),
    (task, goals): (TaskId, &Goals),
    now: Time,
    seed: u64,
) -> Explanation {
    let (joined, stage) = (None, Stage::AtOne);
    let moment = Moment { now, seed, query: None, not: None, joined, stage, gathering: Some(gathering) };
    weighed(snapshot, load, (task, goals), moment)
}

/// Explains what was decided for a query with these goals, from what was seen then. With the snapshot of then, for names.
pub fn recall(seen: &Seen, task: TaskId, goals: &Goals) -> (Snapshot, Explanation) {
    let (mut snapshot, mut load) = seen.view();
    let Seen { at, query, seed, not, did, .. } = seen;
    let joined = match did {
        Did::Sent { joined, .. } => *joined,
        Did::Announced { .. } | Did::Claimed { .. } | Did::Waits { .. } | Did::Refused(_) => None,
    };
    let stage = match did {
        Did::Announced { .. } => Stage::Announced,
        Did::Claimed { node, .. } => Stage::Claimed(*node),
        Did::Sent { .. } | Did::Waits { .. } | Did::Refused(_) => Stage::AtOne,
    };
    let query = query.as_ref();
    let moment = Moment { now: *at, seed: *seed, query, not: *not, joined, stage, gathering: None };
    let mut explanation = weighed(&mut snapshot, &mut load, (task, goals), moment);
    let kept = |candidate: &Candidate| {
        let at = candidate.node.and_then(|node| snapshot.node_ix(node));
        at.is_none_or(|at| seen.knows(at))
    };
    explanation.candidates.retain(kept);
    (snapshot, explanation)
}

/// When a decision is made, and for whom.
#[derive(Clone, Copy)]
struct Moment<'a> {
    now: Time,
    seed: u64,
    /// The query as it was routed; `None` stands for one that comes now.
    query: Option<&'a Query>,
    /// The node that may not get it.
    not: Option<NodeIx>,
    /// Where it went with others of its class.
    joined: Option<Choice>,
    /// Whether it is for several nodes.
    stage: Stage,
    /// What gathers now.
    gathering: Option<&'a Gathering>,
}

/// How far a query is that is announced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is not.
    AtOne,
    /// Nobody has claimed it yet.
    Announced,
    /// This node has.
    Claimed(NodeId),
}

fn weighed(
    snapshot: &mut Snapshot,
    load: &mut LoadView,
    (task, goals): (TaskId, &Goals),
    moment: Moment<'_>,
) -> Explanation {
    let Moment { now, seed, query, not, joined, stage, gathering } = moment;
    let admitted = admission::admit(snapshot, task, goals);
    let asked = admitted.as_ref().ok().map(|admitted| {
        let query = query.copied().unwrap_or_else(|| coming(admitted, goals, now));
        let class = snapshot.intern(query.class);
        load.add_class(class);
        (class, query)
    });
    let verdict = asked.as_ref().map(|(class, query)| {
        let joins = || gathering?.joins(snapshot, load, now, (*class, query));
        if let Stage::Claimed(node) = stage
            && let Some(node) = snapshot.node_ix(node)
        {
            return Verdict::Send(at_once(snapshot, *class, node));
        }
        let picked = || pick_elsewhere(snapshot, load, *class, query, now, seed, not);
        joined.or_else(joins).map_or_else(picked, Verdict::Send)
    });
    let mut candidates = Vec::new();
    if let Some(info) = snapshot.task(task) {
        let goals = admission::with_defaults(goals, &info.defaults);
        let verdict = verdict.as_ref();
        let asked = asked.as_ref().map(|(class, query)| (*class, query));
        let behind_all =
            asked.is_none_or(|(class, query)| has_time_behind_all(snapshot, load, class, query, now, not));
        let goals = &goals;
        let weigh = Weigh { snapshot, load, task: info, goals, asked, behind_all, verdict, now, not, stage };
        for variant in &info.variants {
            weigh.variant(variant, &mut candidates);
        }
    }
    candidates.sort_by_key(|c| (core::cmp::Reverse(c.accuracy), c.latency, c.variant, c.node));
    Explanation { admitted, verdict, candidates }
}

/// The query that is being explained; it is never sent.
fn coming(admitted: &Admitted, goals: &Goals, now: Time) -> Query {
    Query {
        key: QueryKey(u64::MAX),
        tenant: TenantId::DEFAULT,
        app: AppId::DEFAULT,
        class: admitted.class,
        arrived: now,
        deadline: now + admitted.latency,
        expires: now + admitted.latency,
        max_cost: admitted.max_cost,
        prefer: admitted.prefer,
        priority: goals.priority,
        best_effort: admitted.best_effort,
        bytes: Bytes(0),
        returnable: false,
    }
}

struct Weigh<'a> {
    snapshot: &'a Snapshot,
    load: &'a LoadView,
    task: &'a TaskInfo,
    goals: &'a Goals,
    /// The query, if it was let in, and the number of its class.
    asked: Option<(ClassId, &'a Query)>,
    /// It is routed as one that waits for all who wait; else as one that goes before those who are due later.
    behind_all: bool,
    verdict: Option<&'a Verdict>,
    now: Time,
    not: Option<NodeIx>,
    stage: Stage,
}

impl Weigh<'_> {
    fn variant(&self, variant: &VariantInfo, out: &mut Vec<Candidate>) {
        let before = out.len();
        for (at, node) in self.snapshot.table().nodes.iter().enumerate() {
            let ix = NodeIx(u32::try_from(at).expect("fewer than 2^32 nodes"));
            let offers =
                node.offers.iter().filter(|o| o.task == self.task.id && o.ordinal == variant.ordinal);
            out.extend(offers.map(|offer| self.offer(variant, ix, offer)));
        }
        if out.len() == before {
            let finding = self.by_goals(variant).unwrap_or(Finding::NoNode);
            let (variant, accuracy) = (variant.id, variant.accuracy);
            out.push(Candidate {
                variant,
                node: None,
                accuracy,
                latency: None,
                wait: None,
                cost: None,
                price: None,
                finding,
            });
        }
    }

    fn offer(&self, variant: &VariantInfo, ix: NodeIx, offer: &Offer) -> Candidate {
        let node = &self.snapshot.table().nodes[ix.0 as usize];
        let ready_in = match offer.ready {
            Ready::Resident => Micros::ZERO,
            Ready::Loading { at } => at - self.now,
            Ready::Cold { load } => load,
        };
        let general = || self.load.general_wait(self.now, ix);
        let joined = match self.verdict {
            Some(Verdict::Send(Choice { node, joined, .. })) if *node == ix => *joined,
            _ => None,
        };
        let idle = node.rtt + offer.run.service();
        let known = || match self.asked {
            None => general(),
            Some((class, _)) if self.behind_all => self.load.wait(self.now, class, ix),
            Some((class, query)) => self.load.wait_of(self.now, class, ix, query.deadline),
        };
        let wait = joined.unwrap_or_else(known);
        let total = wait + Moments::exactly(ready_in) + idle;
        let price = offer.price(node.price);
        let cost = offer.run.cost(1, price);
        let largest = variant.max_batch.min(offer.run.largest_measured()).max(1);
        let cheapest = cost.min(offer.run.cost(largest, price));
        let finding = self
            .by_goals(variant)
            .or_else(|| self.by_figures(idle.p99(), total.p99(), cheapest, ready_in))
            .unwrap_or_else(|| self.by_verdict(variant, ix, ready_in));
        Candidate {
            variant: variant.id,
            node: Some(node.id),
            accuracy: variant.accuracy,
            latency: Some(total.p99()),
            wait: Some(wait.mean()),
            cost: Some(cost),
            price: Some(offer.run.price.unwrap_or(price)),
            finding,
        }
    }

    fn by_goals(&self, variant: &VariantInfo) -> Option<Finding> {
        let pinned_space = self.goals.variant.map(|id| self.task.variants.iter().find(|v| v.id == id));
        let pinned_space = pinned_space
            .or_else(|| self.goals.model.map(|m| self.task.variants.iter().find(|v| v.model == m)));
        let space = pinned_space.flatten().map_or(self.task.default_space, |v| v.space);
        let pinned = self.goals.variant.is_none_or(|id| id == variant.id)
            && self.goals.model.is_none_or(|model| model == variant.model);
        if variant.space != space {
            Some(Finding::OtherSpace)
        } else if !pinned {
            Some(Finding::NotPinned)
        } else if variant.candidate && self.goals.variant.is_none() && self.goals.model.is_none() {
            Some(Finding::Candidate)
        } else if self.goals.accuracy.is_some_and(|floor| variant.accuracy < floor) {
            Some(Finding::BelowFloor)
        } else {
            None
        }
    }

    fn by_figures(
        &self,
        idle: Micros,
        total: Micros,
        cheapest: CostPer1k,
        ready_in: Micros,
    ) -> Option<Finding> {
        if self.goals.fallback == modelless_types::Fallback::BestEffort {
            return None;
        }
        let bound = self.goals.latency.unwrap_or(admission::DEFAULT_LATENCY);
        // A query that has waited already has less.
        let left = self.asked.map_or(bound, |(_, query)| query.expires - self.now);
        if idle > bound {
            Some(Finding::TooSlow)
        } else if self.goals.max_cost.is_some_and(|ceiling| cheapest > ceiling) {
            Some(Finding::TooDear)
        } else if total > left && ready_in > Micros::ZERO {
            Some(Finding::NotLoaded { ready_in })
        } else if total > left {
            Some(Finding::QueueTooLong)
        } else {
            None
        }
    }

    fn by_verdict(&self, variant: &VariantInfo, ix: NodeIx, ready_in: Micros) -> Finding {
        match self.verdict {
            _ if self.stage == Stage::Announced && ready_in == Micros::ZERO => Finding::Announced,
            Some(Verdict::Send(choice)) if choice.node == ix && choice.ordinal == variant.ordinal => {
                Finding::Chosen
            }
            Some(Verdict::Load { node, ordinal, .. }) if *node == ix && *ordinal == variant.ordinal => {
                Finding::Chosen
            }
            _ if self.not == Some(ix) => Finding::GaveBack,
            _ if ready_in > Micros::ZERO => Finding::WouldLoad { ready_in },
            _ if !self.load.has_credit(
                self.now,
                ix,
                self.asked.map_or(Bytes(0), |(_, query)| query.bytes),
            ) =>
            {
                Finding::NoCredit
            }
            _ => Finding::LessPreferred,
        }
    }
}

/// What a query prefers, in words.
pub fn preference(prefer: Prefer) -> &'static str {
    match prefer {
        Prefer::Accuracy => "the most accurate variant that is in time",
        Prefer::Cost => "the cheapest variant that meets the goals",
        Prefer::Latency => "the fastest variant that meets the goals",
    }
}
