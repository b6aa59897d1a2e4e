//! `modelless tenant`: who owns tasks, models and keys.

use super::{Server, list, segment, text};
use crate::exit::usage;
use crate::out;
use crate::table::Table;
use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a tenant.
    Create(Create),
    /// Say what a tenant, or one of its applications, may use. What is left out is not bounded any more; `--none` bounds nothing.
    Limit(Limit),
    /// All tenants with their applications.
    List(Server),
}

#[derive(Args, Debug)]
pub(crate) struct Create {
    /// Its name.
    name: String,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Limit {
    /// The tenant.
    name: String,
    /// Only this application of it; made if there is none of that name.
    #[arg(long)]
    app: Option<String>,
    /// Queries a second, over all gateways.
    #[arg(long, value_name = "N")]
    requests_per_s: Option<u32>,
    /// And so many at once; otherwise as many as in a second.
    #[arg(long, value_name = "N", requires = "requests_per_s")]
    burst: Option<u32>,
    /// Seconds of devices' time in an hour.
    #[arg(long, value_name = "N")]
    device_s_per_h: Option<u32>,
    /// Queries that are open at one time.
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// Bytes of one body.
    #[arg(long, value_name = "BYTES")]
    body_bytes: Option<u64>,
    /// Bytes of all artefacts of registered models.
    #[arg(long, value_name = "BYTES")]
    artefact_bytes: Option<u64>,
    /// Highest level of priority that queries may ask for: 1 is the highest of all, 5 the usual one.
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(1..=9))]
    highest_priority: Option<u8>,
    /// Take all bounds away.
    #[arg(
        long,
        conflicts_with_all = ["requests_per_s", "device_s_per_h", "concurrency", "body_bytes", "artefact_bytes", "highest_priority"]
    )]
    none: bool,
    #[command(flatten)]
    server: Server,
}

impl Limit {
    fn quota(&self) -> Map<String, Value> {
        let bounds = [
            ("requests_per_s", self.requests_per_s.map(u64::from)),
            ("burst", self.burst.map(u64::from)),
            ("device_s_per_h", self.device_s_per_h.map(u64::from)),
            ("concurrency", self.concurrency.map(u64::from)),
            ("body_bytes", self.body_bytes),
            ("artefact_bytes", self.artefact_bytes),
            ("highest_priority", self.highest_priority.map(u64::from)),
        ];
        bounds.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect()
    }

    fn body(&self) -> Value {
        let mut body = json!({"quota": self.quota()});
        if let Some(app) = &self.app {
            body["app"] = json!(app);
        }
        body
    }

    /// Why nothing is changed where nothing is said: it would take away what holds.
    fn unsaid(&self, tenants: &Value) -> anyhow::Error {
        let Self { name, app, .. } = self;
        let named = |all: &str, within: &Value, name: &str| {
            list(within, all).iter().find(|one| text(one, "name") == name).cloned()
        };
        let Some(tenant) = named("tenants", tenants, name) else {
            return anyhow::anyhow!("there is no tenant {name:?}");
        };
        let (whose, of) = match app {
            Some(app) => (format!("{name}/{app}"), named("apps", &tenant, app).unwrap_or_default()),
            None => (name.clone(), tenant),
        };
        usage(format!(
            "nothing was changed: the quota of {whose} is {}. Say all that is to hold from now on, such as --requests-per-s 100, \
             or --none to bound nothing",
            bounds(&of["quota"])
        ))
    }
}

pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Create(Create { name, server }) => {
            let answer = server.api()?.post_json("/v1/tenants", &json!({"name": name}))?.ok()?.json()?;
            if server.json { out::json(&answer) } else { out::line(format!("tenant {name} was made")) }
        }
        Command::Limit(limit) => {
            let api = limit.server.api()?;
            if limit.quota().is_empty() && !limit.none {
                return Err(limit.unsaid(&api.get("/v1/tenants")?.ok()?.json()?));
            }
            let path = format!("/v1/tenants/{}", segment(&limit.name));
            let body = limit.body().to_string().into();
            let answer = api.send(Method::PATCH, &path, Some("application/json"), body)?;
            let answer = answer.ok()?.json()?;
            if limit.server.json {
                out::json(&answer)
            } else {
                out::line(listed(&json!({"tenants": [answer]})))
            }
        }
        Command::List(server) => {
            let answer = server.api()?.get("/v1/tenants")?.ok()?.json()?;
            if server.json { out::json(&answer) } else { out::line(listed(&answer)) }
        }
    }
}

fn listed(answer: &Value) -> String {
    let mut table = Table::new(&["tenant", "application", "quota"]);
    for tenant in list(answer, "tenants") {
        let name = text(tenant, "name");
        table.row([name.to_owned(), "(all)".to_owned(), bounds(&tenant["quota"])]);
        for app in list(tenant, "apps") {
            table.row([name.to_owned(), text(app, "name").to_owned(), bounds(&app["quota"])]);
        }
    }
    table.to_string()
}

fn bounds(quota: &Value) -> String {
    let bounds = quota.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
    let bounds: Vec<String> = bounds.collect();
    if bounds.is_empty() { "none".to_owned() } else { bounds.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;

    fn limit(args: &[&str]) -> Result<Limit, clap::Error> {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            limit: Limit,
        }
        let all = ["limit", "team-a"].iter().chain(args);
        <Only as clap::Parser>::try_parse_from(all).map(|only| only.limit)
    }

    #[test]
    fn bounds_are_taken_away_only_by_who_says_so() {
        let tenants = json!({"tenants": [{"name": "team-a", "quota": {"burst": 2, "requests_per_s": 5},
            "apps": [{"name": "shop", "quota": {"concurrency": 7}}]}]});
        let unsaid = |args: &[&str]| {
            let limit = limit(args).unwrap();
            assert!(limit.quota().is_empty() && !limit.none);
            let why = limit.unsaid(&tenants);
            assert!(why.is::<Usage>(), "{why}");
            why.to_string()
        };
        let why = unsaid(&[]);
        assert!(why.contains("requests_per_s=5") && why.contains("--none"), "{why}");
        assert!(unsaid(&["--app", "shop"]).contains("team-a/shop is concurrency=7"));
        assert!(unsaid(&["--app", "new"]).contains("team-a/new is none"));
        let all = limit(&["--none"]).unwrap();
        assert!(all.none && all.body() == json!({"quota": {}}));
        assert!(limit(&["--none", "--concurrency", "5"]).is_err(), "what then?");
        assert!(!limit(&["--concurrency", "5"]).unwrap().quota().is_empty());
        let nobody = limit(&[]).unwrap().unsaid(&json!({"tenants": []}));
        assert!(nobody.to_string().contains("no tenant"), "{nobody}");
    }

    #[test]
    fn a_tenant_is_listed_with_each_quota() {
        let answer = json!({"tenants": [{"name": "team-a", "quota": {"requests_per_s": 5, "burst": 2},
            "apps": [{"name": "shop", "quota": {}}]}]});
        let shown = listed(&answer);
        assert!(
            shown.contains("burst=2 requests_per_s=5") || shown.contains("requests_per_s=5 burst=2"),
            "{shown}"
        );
        assert!(shown.contains("shop") && shown.contains("none"), "{shown}");
    }
}
