//! What holds for a query beside what it says itself: the policies of its application and its tenant. Read beforehand with the keys, so a
//! query asks no store and takes no lock; where there is none, it pays for a look at an empty list.
//!
//! Goals where a query gives none: those of its application for the task, then those of the application, of the tenant for the task, of
//! the tenant, and of the task. Bounds hold whoever sets them, the tightest first. Of pins the nearest one holds.

use crate::errors::ApiError;
use crate::goals::Given;
use crate::view::TaskView;
use http::StatusCode;
use modelless_decision::route::Said;
use modelless_store::{Doors, Owner, Policy, PolicyShare};
use modelless_types::{Accuracy, AppId, Fallback, Goals, ModelId, TaskId, TenantId};

/// Where a goal comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Origin {
    Query,
    Application,
    Tenant,
    Task,
    /// Nobody said anything.
    #[default]
    Usual,
}

impl Origin {
    /// As it is told; nothing where nobody said anything.
    pub(crate) const fn name(self) -> Option<&'static str> {
        match self {
            Self::Query => Some("query"),
            Self::Application => Some("application"),
            Self::Tenant => Some("tenant"),
            Self::Task => Some("task"),
            Self::Usual => None,
        }
    }
}

/// Where each goal of a query comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Origins {
    pub(crate) accuracy: Origin,
    pub(crate) latency: Origin,
    pub(crate) max_cost: Origin,
    pub(crate) prefer: Origin,
    /// Of what is pinned.
    pub(crate) pin: Origin,
}

/// One policy, ready to be applied.
#[derive(Debug)]
struct Rule {
    from: Origin,
    task: Option<TaskId>,
    policy: Policy,
    /// What it pins, by name.
    pin: Given,
}

/// The model that answers by what is pinned, also where that is one of its variants.
fn model_of(task: &TaskView, goals: &Goals) -> Option<ModelId> {
    let of_variant = || Some(task.variant(goals.variant?)?.model.id);
    goals.model.or_else(of_variant)
}

/// What policies say of who gets how much of devices' time, for the router.
pub(crate) fn shares(doors: &Doors) -> Vec<Said> {
    let said = doors.policies.iter().filter_map(|(of, policy)| {
        let (Owner::App(app), PolicyShare { weight, reserve }) = (of.owner, policy.share) else {
            return None;
        };
        (weight.is_some() || reserve.is_some()).then_some(Said { task: of.task, app, weight, reserve })
    });
    said.collect()
}

/// Those that hold for an application, the nearest first.
#[derive(Debug, Default)]
pub(crate) struct Policies(Vec<Rule>);

impl Policies {
    pub(super) fn of(doors: &Doors, (tenant, app): (TenantId, AppId)) -> Self {
        let its = |owner: Owner, from: Origin| {
            // What it gets of devices is the router's.
            let applies = |policy: &Policy| {
                let share = PolicyShare::default();
                !Policy { share, ..policy.clone() }.is_empty()
            };
            let own = doors.policies.iter().filter(move |(of, policy)| of.owner == owner && applies(policy));
            own.map(move |(of, policy)| Rule {
                from,
                task: of.task,
                policy: policy.clone(),
                pin: Given {
                    model: policy.model.clone(),
                    variant: policy.variant.clone(),
                    ..Given::default()
                },
            })
        };
        let of_app = its(Owner::App(app), Origin::Application);
        let mut rules: Vec<Rule> = of_app.chain(its(Owner::Tenant(tenant), Origin::Tenant)).collect();
        // The order in which they were read stays where neither is nearer.
        rules.sort_by_key(|rule| (rule.from != Origin::Application, rule.task.is_none()));
        Self(rules)
    }

    /// The goals that hold for a query to a task, and where each comes from. What is left to the task's defaults stays open.
    pub(crate) fn apply(&self, task: &TaskView, asked: &Goals) -> Result<(Goals, Origins), ApiError> {
        let defaults = &task.task.defaults;
        let mut goals = *asked;
        let mut from = Origins::default();
        let for_task = |rule: &&Rule| rule.task.is_none_or(|of| of == task.task.id);
        let rules = || self.0.iter().filter(for_task);
        macro_rules! fill {
            ($goal:ident) => {
                if goals.$goal.is_some() {
                    from.$goal = Origin::Query;
                } else if let Some((rule, value)) =
                    rules().find_map(|rule| Some((rule, rule.policy.goals.$goal?)))
                {
                    (goals.$goal, from.$goal) = (Some(value), rule.from);
                } else if defaults.$goal.is_some() {
                    from.$goal = Origin::Task;
                }
            };
        }
        fill!(accuracy);
        fill!(latency);
        fill!(max_cost);
        fill!(prefer);
        for rule in rules() {
            let floor = goals.accuracy.or(defaults.accuracy).unwrap_or(Accuracy::ZERO);
            if let Some(least) = rule.policy.bounds.accuracy.filter(|least| *least > floor) {
                (goals.accuracy, from.accuracy) = (Some(least), rule.from);
            }
            let ceiling = goals.max_cost.or(defaults.max_cost);
            let tighter =
                rule.policy.bounds.max_cost.filter(|most| ceiling.is_none_or(|known| known > *most));
            if let Some(most) = tighter {
                (goals.max_cost, from.max_cost) = (Some(most), rule.from);
            }
            // The best that can be done would be done at any cost.
            if rule.policy.bounds.max_cost.is_some() {
                goals.fallback = Fallback::Reject;
            }
        }
        if goals.model.is_some() || goals.variant.is_some() {
            from.pin = Origin::Query;
        }
        let pinning = rules().find(|rule| rule.policy.model.is_some() || rule.policy.variant.is_some());
        if let Some(rule) = pinning {
            let pinned = task.resolve(&rule.pin)?;
            let (asked, answers) = (model_of(task, &goals), model_of(task, &pinned));
            let other_model = asked.zip(answers).is_some_and(|(asked, answers)| asked != answers);
            let other_variant =
                goals.variant.zip(pinned.variant).is_some_and(|(asked, pinned)| asked != pinned);
            if other_model || other_variant {
                let name = rule.policy.variant.as_ref().or(rule.policy.model.as_ref());
                let message = format!(
                    "a policy of your {} has {} answer here; ask without a pin",
                    rule.from.name().unwrap_or_default(),
                    name.map_or("another one", String::as_str)
                );
                return Err(ApiError::new(StatusCode::FORBIDDEN, "pinned_otherwise", message));
            }
            goals.model = goals.model.or(pinned.model);
            goals.variant = goals.variant.or(pinned.variant);
            from.pin = rule.from;
        }
        Ok((goals, from))
    }

    /// The same for who only wants to know how long queries may take; a refusal is told when they are asked.
    pub(crate) fn applied(&self, task: &TaskView, asked: &Goals) -> Goals {
        self.apply(task, asked).map_or(*asked, |(goals, _)| goals)
    }
}
