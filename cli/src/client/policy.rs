//! `modelless policy`: what holds for the queries of a tenant or an application beside what they say themselves.

use super::{Server, list, number, text};
use crate::exit::usage;
use crate::out;
use crate::table::Table;
use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Say what holds from now on for the queries of an application or a tenant, in place of what was said before; `--none` takes it away.
    Set(Box<Set>),
    /// What was said of an application or a tenant, and what was said of all of the tenant's.
    Show(Show),
    /// All policies.
    List(Server),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The tenant, or TENANT/APPLICATION.
    of: String,
    /// Only what holds for queries to this task.
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Set {
    /// The tenant, or TENANT/APPLICATION. Only operators may say what holds for all of a tenant.
    of: String,
    /// Only for queries to this task.
    #[arg(long)]
    task: Option<String>,
    /// The floor where a query gives none. 0 to 1.
    #[arg(long, value_name = "0..1")]
    accuracy: Option<String>,
    /// The bound on the latency where a query gives none.
    #[arg(long, value_name = "MS")]
    latency_ms: Option<String>,
    /// The ceiling where a query gives none, in dollars per 1,000 queries.
    #[arg(long, value_name = "USD")]
    max_cost: Option<String>,
    /// What idle capacity is spent on where a query does not say: accuracy, cost or latency.
    #[arg(long, value_name = "GOAL")]
    prefer: Option<String>,
    /// No floor is lower, whatever a query asks for. 0 to 1.
    #[arg(long, value_name = "0..1")]
    least_accuracy: Option<String>,
    /// No ceiling is higher, whatever a query asks for. Dollars per 1,000 queries.
    #[arg(long, value_name = "USD")]
    most_cost: Option<String>,
    /// Only this model answers: a name, or NAME@VERSION.
    #[arg(long, value_name = "NAME", requires = "task")]
    model: Option<String>,
    /// Only this variant answers.
    #[arg(long, value_name = "NAME", requires = "task")]
    variant: Option<String>,
    /// How much of the task's devices it gets beside other applications where not all can be answered in time; others have 1. 1 to 1,000.
    #[arg(long, value_name = "N")]
    weight: Option<String>,
    /// What part of the task's devices is its own whatever others ask, such as 30%; what it leaves the others have.
    #[arg(long, value_name = "PERCENT")]
    reserve: Option<String>,
    /// Take away what was said before.
    #[arg(
        long,
        conflicts_with_all = ["accuracy", "latency_ms", "max_cost", "prefer", "least_accuracy", "most_cost", "model", "variant",
            "weight", "reserve"]
    )]
    none: bool,
    #[command(flatten)]
    server: Server,
}

/// What should be a number goes as it was written; what is none goes as text, for the server to judge.
fn written(text: &str) -> Value {
    serde_json::from_str::<Value>(text).ok().filter(Value::is_number).unwrap_or_else(|| json!(text))
}

/// A part of all: `30%`, or `0.3`. What is neither goes as text, for the server to judge.
fn part(text: &str) -> Value {
    let percent = text.trim().strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok());
    // To a millionth, so that 30 % is 0.3 and nothing beside it.
    percent.map_or_else(|| written(text), |percent| json!((percent * 1e4).round() / 1e6))
}

/// TENANT/APPLICATION, or all of a tenant's.
fn owner(of: &str) -> (&str, Option<&str>) {
    match of.split_once('/') {
        Some((tenant, app)) => (tenant, Some(app)),
        None => (of, None),
    }
}

impl Set {
    fn body(&self) -> Value {
        let all = |of: &[(&str, &Option<String>)]| -> Map<String, Value> {
            let said =
                of.iter().filter_map(|(name, value)| Some(((*name).to_owned(), written(value.as_deref()?))));
            said.collect()
        };
        let goals = all(&[
            ("accuracy", &self.accuracy),
            ("latency_ms", &self.latency_ms),
            ("max_cost", &self.max_cost),
            ("prefer", &self.prefer),
        ]);
        let bounds = all(&[("accuracy", &self.least_accuracy), ("max_cost", &self.most_cost)]);
        let mut body =
            json!({"goals": goals, "bounds": bounds, "model": self.model, "variant": self.variant});
        body["task"] = json!(self.task);
        body["weight"] = json!(self.weight.as_deref().map(written));
        body["reserve"] = json!(self.reserve.as_deref().map(part));
        let (tenant, app) = owner(&self.of);
        (body["tenant"], body["app"]) = (json!(tenant), json!(app));
        body
    }

    fn says_nothing(&self) -> bool {
        let body = self.body();
        let empty = |part: &str| body[part].as_object().is_none_or(Map::is_empty);
        let named = [&self.model, &self.variant, &self.weight, &self.reserve];
        empty("goals") && empty("bounds") && named.iter().all(|said| said.is_none())
    }
}

pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Set(set) => {
            if set.says_nothing() && !set.none {
                return Err(usage(
                    "nothing was changed: say all that is to hold from now on, such as --accuracy 0.9 or --most-cost 0.001, or \
                     --none to take away what was said before",
                ));
            }
            let body = set.body().to_string().into();
            let answer =
                set.server.api()?.send(Method::PUT, "/v1/policies", Some("application/json"), body)?;
            let answer = answer.ok()?.json()?;
            if set.server.json {
                out::json(&answer)
            } else {
                out::line(listed(&json!({"policies": [answer]})))
            }
        }
        Command::Show(show) => {
            let answer = show.server.api()?.get("/v1/policies")?.ok()?.json()?;
            let shown = json!({"policies": held(&answer, &show.of, show.task.as_deref())});
            if show.server.json { out::json(&shown) } else { out::line(listed(&shown)) }
        }
        Command::List(server) => {
            let answer = server.api()?.get("/v1/policies")?.ok()?.json()?;
            if server.json { out::json(&answer) } else { out::line(listed(&answer)) }
        }
    }
}

/// Of all policies those that hold for an application or a tenant, and for a task if one is named.
fn held<'a>(answer: &'a Value, of: &str, task: Option<&str>) -> Vec<&'a Value> {
    let (tenant, app) = owner(of);
    let holds = |policy: &&Value| {
        let its = |name: &str, wanted: Option<&str>| {
            wanted.is_none() || policy[name].is_null() || policy[name].as_str() == wanted
        };
        text(policy, "tenant") == tenant && its("app", app) && its("task", task)
    };
    list(answer, "policies").iter().filter(holds).collect()
}

fn listed(answer: &Value) -> Table {
    let mut table = Table::new(&[
        "tenant",
        "application",
        "task",
        "where a query gives none",
        "whatever it gives",
        "where not all can be in time",
    ]);
    for policy in list(answer, "policies") {
        let or_all = |name: &str| policy[name].as_str().unwrap_or("(all)").to_owned();
        table.row([
            text(policy, "tenant").to_owned(),
            or_all("app"),
            or_all("task"),
            goals(policy),
            bounds(policy),
            share(policy),
        ]);
    }
    table
}

fn share(policy: &Value) -> String {
    let mut said = Vec::new();
    said.extend(policy["weight"].as_u64().map(|weight| format!("weight {weight}")));
    let percent = policy["reserve"].as_f64().map(|part| (part * 1e6).round() / 1e4);
    said.extend(percent.map(|percent| format!("{percent} % reserved")));
    or_none(&said)
}

fn goals(policy: &Value) -> String {
    let goals = &policy["goals"];
    let mut said = Vec::new();
    if goals["accuracy"].is_number() {
        said.push(format!("accuracy >= {}", number(&goals["accuracy"], 4)));
    }
    if goals["latency_ms"].is_number() {
        said.push(format!("within {} ms", number(&goals["latency_ms"], 1)));
    }
    if goals["max_cost"].is_number() {
        said.push(format!("for <= {}", number(&goals["max_cost"], 6)));
    }
    said.extend(goals["prefer"].as_str().map(|prefer| format!("prefer {prefer}")));
    or_none(&said)
}

fn bounds(policy: &Value) -> String {
    let bounds = &policy["bounds"];
    let mut said = Vec::new();
    if bounds["accuracy"].is_number() {
        said.push(format!("accuracy >= {} at least", number(&bounds["accuracy"], 4)));
    }
    if bounds["max_cost"].is_number() {
        said.push(format!("for <= {} at most", number(&bounds["max_cost"], 6)));
    }
    for name in ["model", "variant"] {
        said.extend(policy[name].as_str().map(|pinned| format!("only {name} {pinned}")));
    }
    or_none(&said)
}

fn or_none(said: &[String]) -> String {
    if said.is_empty() { "-".to_owned() } else { said.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(args: &[&str]) -> Result<Set, clap::Error> {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            set: Set,
        }
        <Only as clap::Parser>::try_parse_from(["set"].iter().chain(args)).map(|only| only.set)
    }

    #[test]
    fn what_is_said_goes_to_the_server_as_it_was_written_and_nothing_is_taken_away_by_chance() {
        let all = [
            "team-a/shop",
            "--task",
            "fashion",
            "--accuracy",
            "0.90",
            "--prefer",
            "cost",
            "--most-cost",
            "cheap",
        ];
        let body = set(&all).unwrap().body();
        assert_eq!(body["goals"], json!({"accuracy": 0.9, "prefer": "cost"}));
        assert_eq!(body["bounds"], json!({"max_cost": "cheap"}), "the server says what is wrong with it");
        assert_eq!(
            (&body["tenant"], &body["app"], &body["task"]),
            (&json!("team-a"), &json!("shop"), &json!("fashion"))
        );
        let tenant = set(&["team-a", "--none"]).unwrap();
        assert!(tenant.says_nothing() && tenant.none && tenant.body()["app"].is_null());
        assert!(set(&["team-a"]).unwrap().says_nothing() && !set(&["team-a"]).unwrap().none);
        assert!(set(&["team-a", "--model", "cnn"]).is_err(), "of which task?");
        assert!(set(&["team-a", "--none", "--accuracy", "0.9"]).is_err());
        assert!(set(&["team-a/shop", "--none", "--weight", "2"]).is_err());
        for (written, sent) in
            [("30%", json!(0.3)), ("12.5 %", json!(0.125)), ("0.25", json!(0.25)), ("much", json!("much"))]
        {
            let share = set(&["team-a/shop", "--weight", "3", "--reserve", written]).unwrap();
            assert!(!share.says_nothing());
            assert_eq!((&share.body()["weight"], &share.body()["reserve"]), (&json!(3), &sent), "{written}");
        }
    }

    #[test]
    fn a_policy_is_listed_with_what_it_says_and_for_whom() {
        let policy = json!({"tenant": "team-a", "app": "shop", "task": null, "goals": {"accuracy": 0.9, "latency_ms": 50.0},
            "bounds": {"max_cost": 0.001}, "model": "cnn@2", "weight": 3, "reserve": 0.125});
        let shown = listed(&json!({"policies": [policy]})).to_string();
        for part in [
            "shop",
            "(all)",
            "accuracy >= 0.9000, within 50.0 ms",
            "for <= 0.001000 at most, only model cnn@2",
            "weight 3, 12.5 % reserved",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let others = json!({"policies": [
            policy, {"tenant": "team-a", "app": null, "task": "t"}, {"tenant": "team-a", "app": "other", "task": null},
            {"tenant": "team-b", "app": "shop", "task": null}, {"tenant": "team-a", "app": "shop", "task": "u"},
        ]});
        let show = |of: &str, task: Option<&str>| held(&others, of, task).len();
        assert_eq!(
            (show("team-a/shop", None), show("team-a/shop", Some("t")), show("team-a", None)),
            (3, 2, 4)
        );
    }
}
