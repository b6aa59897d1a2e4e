//! `/v1/plans/next`: what would change if it were planned now; as it is, or as if a node were not there, more were asked, or pools were
//! set otherwise. Nothing is changed. What is decided, and from what, is the scheduler's own: `decision` and `planning`.

use super::plans::parsed;
use super::{Answer, FromApp, Params, Shared};
use crate::access::Caller;
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::machinery::{self, Setting};
use crate::outlook;
use crate::show;
use crate::suggest::{excerpt, suggest};
use crate::view::{View, metered};
use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use modelless_decision::admission::{DEFAULT_LATENCY, wanted};
use modelless_decision::hire::{Asked as AskedFor, Counts};
use modelless_decision::plan::changes;
use modelless_planning::{Asked, Foretold, aheads};
use modelless_store::UnixMicros;
use modelless_types::{Goals, NodeId, Task, Time};
use modelless_wire::NodeStatus;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::SystemTime;

/// The most that can be supposed to be asked of a task, in queries a second, and of how many tasks.
const RATE_MAX: f64 = 1e9;
const TASKS_MAX: usize = 100;

/// As if.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Supposed {
    /// This node were not there.
    without: Option<String>,
    /// So much were asked of tasks: queries a second, or `x10` for ten times as much as now.
    demand: BTreeMap<String, String>,
    /// Pools were set so.
    pools: Option<Setting>,
}

pub(super) async fn get(State(app): FromApp, caller: Caller, uri: Uri) -> Answer {
    let mut params = Params::of(&uri)?;
    let (without, demand) = (params.take("without"), params.take("demand"));
    params.finish(&["without", "demand"])?;
    let each = demand.iter().flat_map(|all| all.split(',')).map(|one| {
        let named = one.rsplit_once('=').map(|(task, rate)| (task.to_owned(), rate.to_owned()));
        named.ok_or_else(|| {
            let one = excerpt(one);
            ApiError::malformed(format!("demand is {one}; expected TASK=50 or TASK=x10, several with commas"))
        })
    });
    let demand = each.collect::<Result<_, _>>()?;
    shown(&app, &caller, &Supposed { without, demand, pools: None }).await
}

pub(super) async fn post(State(app): FromApp, caller: Caller, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let core = &*app.core;
    let supposed: Supposed = body::read_json(core, &head, body)
        .await
        .map_err(|error| caller.unread(core.driver.clock().now(), error))?;
    shown(&app, &caller, &supposed).await
}

async fn shown(app: &Shared, caller: &Caller, supposed: &Supposed) -> Answer {
    let core = &*app.core;
    // It is more work here than a query.
    caller.asks(core.driver.clock().now())?;
    if let Some(pools) = &supposed.pools {
        pools.check().map_err(ApiError::malformed)?;
    }
    let view = core.view();
    let nodes: Vec<NodeStatus> = view.nodes.iter().map(|node| NodeStatus::clone(node)).collect();
    let (mut asked, mut counts) = {
        let outlook = core.outlook.lock().unwrap_or_else(PoisonError::into_inner);
        (outlook.asked(), outlook.counts())
    };
    suppose(app, &view, &supposed.demand, (&mut asked, &mut counts))?;
    let told = machinery::told(app, supposed.pools.as_ref()).await?;
    let left_out = match &supposed.without {
        None => BTreeSet::new(),
        Some(name) => without(name, &nodes, told.as_ref())?,
    };
    let saved = app.store.current_plan().await?;
    let before = saved.as_ref().map(parsed).transpose()?.unwrap_or_default();
    let now = Time(UnixMicros::of(SystemTime::now()).0);
    let mut foretold = Foretold::default();
    let forecast = foretold.read(&*app.store, now).await?;
    let aheads = aheads(forecast, &view.catalog, now);
    let (_, next) = outlook::next(&view.catalog, &nodes, (&asked, &aheads), &before, &left_out);
    let changed = changes(&before, &next);
    let machines =
        told.map(|told| told.decided(core, &view.catalog, (&counts, forecast), supposed.without.as_deref()));
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "parent": saved.map(|saved| saved.id),
            "changes": changed.iter().map(|change| show::change(&view, change)).collect::<Vec<_>>(),
            "steps": next.report.iter().map(|step| show::step(&view, &next, step)).collect::<Vec<_>>(),
            "machines": machines,
        }),
    ))
}

/// The nodes of this name; none where it is a machine whose node is not there.
fn without(
    name: &str,
    nodes: &[NodeStatus],
    told: Option<&machinery::Told>,
) -> Result<BTreeSet<NodeId>, ApiError> {
    let found: BTreeSet<NodeId> =
        nodes.iter().filter(|node| node.name == name).map(|node| node.node).collect();
    if found.is_empty() && !told.is_some_and(|told| told.knows(name)) {
        let near = suggest(name, nodes.iter().map(|node| node.name.as_str()));
        let message = format!("there is no node {}{near}", excerpt(name));
        return Err(ApiError::not_found("unknown_node", message));
    }
    Ok(found)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Rate {
    PerSecond(f64),
    Times(f64),
}

impl Rate {
    fn parse(text: &str) -> Option<Self> {
        let plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number = |text: &str| {
            Some(text).filter(plain)?.parse::<f64>().ok().filter(|rate| (0.0..=RATE_MAX).contains(rate))
        };
        match text.strip_prefix('x') {
            Some(times) => number(times).map(Self::Times),
            None => number(text).map(Self::PerSecond),
        }
    }
}

fn suppose(
    app: &Shared,
    view: &View,
    demand: &BTreeMap<String, String>,
    (asked, counts): (&mut Asked, &mut Counts),
) -> Result<(), ApiError> {
    if demand.len() > TASKS_MAX {
        return Err(ApiError::malformed(format!("demand names {} tasks; {TASKS_MAX} at most", demand.len())));
    }
    for (name, text) in demand {
        let named = |task: &&Task| metered(&view.catalog, task) == *name;
        let Some(task) = view.catalog.tasks.iter().find(named) else {
            let names: Vec<String> =
                view.catalog.tasks.iter().map(|task| metered(&view.catalog, task)).collect();
            let near = suggest(name, names.iter().map(String::as_str));
            return Err(ApiError::not_found(
                "unknown_task",
                format!("there is no task {}{near}", excerpt(name)),
            ));
        };
        let rate = Rate::parse(text).ok_or_else(|| {
            let text = excerpt(text);
            ApiError::malformed(format!(
                "demand of {name} is {text}; expected queries a second, such as 50, or x10 for ten times as much as now"
            ))
        })?;
        let rates = spread(app, task, rate, counts)?;
        // Nobody who asks nothing keeps a task awake.
        if rates.iter().any(|(_, rate)| *rate > 0.0) {
            asked.idle.suppose_asked(task.id);
        }
        asked.demands.suppose(
            task.id,
            &rates.iter().map(|((class, _), rate)| ((*class, None), *rate)).collect::<Vec<_>>(),
        );
        counts.suppose(task.id, &rates);
    }
    Ok(())
}

/// Over the classes that are asked of now, each in its part; where none is, over that of the task's own goals.
fn spread(app: &Shared, task: &Task, rate: Rate, counts: &Counts) -> Result<Vec<(AskedFor, f64)>, ApiError> {
    let level = counts.level();
    let now: Vec<(AskedFor, f64)> =
        level.into_iter().filter(|((class, _), rate)| class.task == task.id && *rate > 0.0).collect();
    let all: f64 = now.iter().map(|(_, rate)| rate).sum();
    let times = match rate {
        Rate::Times(times) if all > 0.0 => times,
        Rate::PerSecond(rate) if all > 0.0 => rate / all,
        Rate::Times(_) => {
            let message = format!(
                "nothing was asked of task {:?} in the last seconds, so there is nothing to be multiplied; give queries a second, as in {}=50",
                task.name, task.name
            );
            return Err(ApiError::new(StatusCode::CONFLICT, "nothing_asked", message));
        }
        Rate::PerSecond(rate) => {
            let own = |router: &mut modelless_decision::route::Router, _| {
                wanted(router.snapshot(), task.id, &Goals::default())
            };
            let class = app.core.driver.look(own).ok_or_else(|| {
                let message = format!("no variant of task {:?} could answer", task.name);
                ApiError::new(StatusCode::CONFLICT, "nothing_runnable", message)
            })?;
            return Ok(vec![((class, task.defaults.latency.unwrap_or(DEFAULT_LATENCY)), rate)]);
        }
    };
    Ok(now.into_iter().map(|(asked, rate)| (asked, rate * times)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_so_many_a_second_or_so_many_times_as_much_and_nothing_else() {
        assert_eq!(Rate::parse("50"), Some(Rate::PerSecond(50.0)));
        assert_eq!(Rate::parse("x10"), Some(Rate::Times(10.0)));
        assert_eq!(Rate::parse("x0.5"), Some(Rate::Times(0.5)));
        for wrong in ["", "x", "-1", "NaN", "inf", "1e10", "10x", "many"] {
            assert_eq!(Rate::parse(wrong), None, "{wrong}");
        }
    }
}
