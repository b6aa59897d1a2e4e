//! `modelless key`: keys of applications. The first one is made at the store itself, by whoever can reach that.

use super::versions::{time, who};
use super::{Server, list, segment, text};
use crate::exit::usage;
use crate::out;
use crate::table::Table;
use clap::{Args, Subcommand};
use modelless_store::{
    Access as _, Audit as _, DataDir, Deed, NewKey, SecretKey, SqlStore, Store as _, UnixMicros,
};
use modelless_types::{Scopes, TenantId};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::SystemTime;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a key. Its secret is shown this once.
    Create(Create),
    /// All keys of your tenant, without their secrets.
    List(Server),
    /// Put a new key in the place of one; for a while both are valid.
    Rotate(Rotate),
    /// End a key at once.
    Revoke(Revoke),
}

#[derive(Args, Debug)]
pub(crate) struct Create {
    /// What it is for.
    name: String,
    /// What it allows: query, register, admin, with commas between them.
    #[arg(long, value_name = "SCOPES", default_value = "query")]
    scopes: String,
    /// The tenant it belongs to; without it that of your own key.
    #[arg(long)]
    tenant: Option<String>,
    /// The application of the tenant; made if there is none of that name.
    #[arg(long, default_value = "default")]
    app: String,
    /// Ends by itself after so long, such as 90d or 12h.
    #[arg(long, value_name = "TIME")]
    expires_in: Option<String>,
    /// Make it in the data folder of `up` instead of asking a server; the very first key is made so.
    #[arg(long, value_name = "DIR", conflicts_with = "database")]
    data: Option<PathBuf>,
    /// Make it in a database instead of asking a server.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Rotate {
    /// The key's number, or how it begins.
    key: String,
    /// How long both are valid, such as 1h.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    overlap: String,
    /// The new one ends by itself after so long.
    #[arg(long, value_name = "TIME")]
    expires_in: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// The key's number, or how it begins.
    key: String,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(options) => create(&options),
        Command::List(server) => {
            let answer = server.api()?.get("/v1/keys")?.ok()?.json()?;
            if server.json { out::json(&answer) } else { out::line(listed(&answer)) }
        }
        Command::Rotate(options) => {
            let mut body = json!({"overlap_s": seconds(&options.overlap)?});
            if let Some(expires) = &options.expires_in {
                body["expires_in_s"] = json!(seconds(expires)?);
            }
            let path = format!("/v1/keys/{}/rotate", segment(&options.key));
            let answer = options.server.api()?.post_json(&path, &body)?.ok()?.json()?;
            if options.server.json {
                return out::json(&answer);
            }
            let (old, until) = (text(&answer["old"], "prefix"), &answer["old"]["expires_unix_us"]);
            eprintln!("{old} is valid until {}", time(until.as_u64().unwrap_or(0)));
            told(&answer["new"], text(&answer, "secret"))
        }
        Command::Revoke(options) => {
            let path = format!("/v1/keys/{}", segment(&options.key));
            let answer = options.server.api()?.delete(&path)?.ok()?.json()?;
            if options.server.json {
                return out::json(&answer);
            }
            out::line(format!(
                "{} ({}) opens nothing any more",
                text(&answer, "prefix"),
                text(&answer, "name")
            ))
        }
    }
}

fn create(options: &Create) -> anyhow::Result<()> {
    let scopes = Scopes::parse(&options.scopes).ok_or_else(|| {
        usage(format!(
            "--scopes {:?} must be some of query, register, admin, as in query,admin",
            options.scopes
        ))
    })?;
    let expires = options.expires_in.as_deref().map(seconds).transpose()?;
    if options.data.is_some() || options.database.is_some() {
        return at_the_store(options, scopes, expires);
    }
    let mut body =
        json!({"name": options.name, "scopes": scopes.iter().collect::<Vec<_>>(), "app": options.app});
    if let Some(tenant) = &options.tenant {
        body["tenant"] = json!(tenant);
    }
    if let Some(expires) = expires {
        body["expires_in_s"] = json!(expires);
    }
    let answer = options.server.api()?.post_json("/v1/keys", &body)?.ok()?.json()?;
    if options.server.json { out::json(&answer) } else { told(&answer, text(&answer, "secret")) }
}

/// Only the key on standard output, so that it can be put where it is needed.
fn told(key: &Value, secret: &str) -> anyhow::Result<()> {
    let scopes = list(key, "scopes").iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
    eprintln!(
        "key {} {} of {}/{} allows {scopes}. Keep it now, it is not shown again; commands take it from MODELLESS_KEY",
        key["id"],
        text(key, "prefix"),
        text(key, "tenant"),
        text(key, "app"),
    );
    out::line(secret)
}

fn at_the_store(options: &Create, scopes: Scopes, expires: Option<u64>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // A server that runs on a folder holds it; its database takes others beside it.
        let held = match options.data.as_ref().map(DataDir::lock) {
            None | Some(Err(modelless_store::Error::Locked { .. })) => None,
            Some(held) => Some(held?),
        };
        let in_folder =
            || options.data.as_ref().map(|data| format!("sqlite:{}", DataDir::database_in(data).display()));
        let address = options.database.clone().or_else(in_folder).unwrap_or_default();
        let store = modelless_store::open(&address).await?;
        let made = make(&store, options, scopes, expires).await;
        store.close().await;
        drop(held);
        let (key, secret) = made?;
        if options.server.json {
            let mut key = key;
            key["secret"] = json!(secret.expose());
            return out::json(&key);
        }
        told(&key, secret.expose())
    })
}

async fn make(
    store: &SqlStore,
    options: &Create,
    scopes: Scopes,
    expires: Option<u64>,
) -> anyhow::Result<(Value, SecretKey)> {
    let doors = store.doors().await?;
    let wanted = options.tenant.as_deref();
    let tenant = doors.tenants.iter().find(|tenant| match wanted {
        Some(name) => tenant.name == name,
        None => tenant.id == TenantId::DEFAULT,
    });
    let tenant = tenant.ok_or_else(|| {
        usage(format!(
            "there is no tenant {:?}; make it with `modelless tenant create`",
            wanted.unwrap_or_default()
        ))
    })?;
    let app = store.app(tenant.id, &options.app).await?;
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|error| anyhow::anyhow!("the system gave no random bytes: {error}"))?;
    let secret = SecretKey::new(random);
    let at = UnixMicros::of(SystemTime::now());
    let expires = expires.map(|seconds| UnixMicros(at.0.saturating_add(seconds.saturating_mul(1_000_000))));
    let (name, kept) = (options.name.clone(), secret.kept());
    let key = store.create_key(NewKey { app: app.id, name, secret: kept, scopes, at, expires }).await?;
    let deed = Deed {
        at,
        tenant: tenant.id,
        key: None,
        who: format!("{} at the store", who()),
        action: "key create".to_owned(),
        target: format!(
            "key {}, {} ({}), tenant {}, application {}, scopes {scopes}",
            key.id.0, key.secret.prefix, key.name, tenant.name, app.name
        ),
        status: 201,
    };
    store.note(vec![deed]).await?;
    let shown = json!({
        "id": key.id, "prefix": key.secret.prefix, "name": key.name, "tenant": tenant.name, "app": app.name,
        "scopes": scopes.iter().collect::<Vec<_>>(), "created_unix_us": key.created, "expires_unix_us": key.expires,
    });
    Ok((shown, secret))
}

fn listed(answer: &Value) -> String {
    let keys = list(answer, "keys");
    if keys.is_empty() {
        return "there is no key, and nobody needs one".to_owned();
    }
    let mut table = Table::new(&[">id", "key", "name", "tenant", "app", "scopes", "state", "until"]);
    for key in keys {
        let scopes = list(key, "scopes").iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
        table.row([
            key["id"].to_string(),
            format!("{}...", text(key, "prefix")),
            text(key, "name").to_owned(),
            text(key, "tenant").to_owned(),
            text(key, "app").to_owned(),
            scopes,
            text(key, "state").to_owned(),
            key["expires_unix_us"].as_u64().map_or_else(|| "revoked".to_owned(), time),
        ]);
    }
    table.to_string()
}

/// A time as people write it: `90d`, `12h`, `30m`, `45s`.
pub(super) fn seconds(text: &str) -> anyhow::Result<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3_600),
        "d" => Some(24 * 3_600),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    let time = unit.zip(number).and_then(|(unit, number)| number.checked_mul(unit));
    time.ok_or_else(|| usage(format!("{text:?} is no time; expected something like 90d, 12h, 30m or 45s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!((seconds("90d").unwrap(), seconds("2m").unwrap()), (7_776_000, 120));
        for wrong in ["", "d", "12", "1w", "-1h", "99999999999999999999d", "18446744073709551615d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_list_shows_how_keys_begin_and_what_they_allow() {
        let answer = json!({"keys": [{"id": 3, "prefix": "mlk_01234567", "name": "camera", "tenant": "default",
            "app": "shop", "scopes": ["query"], "state": "valid", "expires_unix_us": null}]});
        let shown = listed(&answer);
        assert!(shown.contains("mlk_01234567...") && shown.contains("query"), "{shown}");
        assert!(listed(&json!({"keys": []})).contains("nobody needs one"));
    }
}
