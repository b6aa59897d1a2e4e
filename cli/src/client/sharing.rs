//! Which other tenants may use a model.

use super::versions::path;
use super::{Server, list, text};
use crate::out;
use clap::Args;
use http::Method;
use serde_json::{Value, json};

#[derive(Args, Debug)]
pub(crate) struct Share {
    /// The model.
    name: String,
    /// Its task. Needed where several tasks have a model of this name.
    #[arg(long)]
    task: Option<String>,
    /// With these tenants, with commas between them.
    #[arg(
        long,
        value_name = "TENANTS",
        value_delimiter = ',',
        required_unless_present_any = ["public", "private"],
        conflicts_with_all = ["public", "private"]
    )]
    with: Vec<String>,
    /// With every tenant.
    #[arg(long, conflicts_with = "private")]
    public: bool,
    /// With nobody any more.
    #[arg(long)]
    private: bool,
    #[command(flatten)]
    server: Server,
}

pub(super) fn share(options: &Share) -> anyhow::Result<()> {
    let body = if options.public {
        json!({"visibility": "public"})
    } else if options.private {
        json!({"visibility": "private"})
    } else {
        json!({"visibility": "shared", "tenants": options.with})
    };
    let api = options.server.api()?;
    let path = path(&api, options.task.as_deref(), &options.name)?;
    let answer = api.send(Method::PATCH, &path, Some("application/json"), body.to_string().into())?;
    let answer = answer.ok()?.json()?;
    if options.server.json { out::json(&answer) } else { out::line(said(&answer)) }
}

fn said(answer: &Value) -> String {
    let name = text(answer, "model");
    match text(answer, "visibility") {
        "public" => format!("every tenant may use {name}"),
        "shared" => {
            let tenants: Vec<&str> = list(answer, "tenants").iter().filter_map(Value::as_str).collect();
            format!("{} may use {name}", tenants.join(" and "))
        }
        _ => format!("only its owner may use {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Only {
        #[command(flatten)]
        share: Share,
    }

    #[test]
    fn it_is_shared_in_one_way_and_told_in_words() {
        let parsed = |args: &[&str]| Only::try_parse_from(["share", "m"].iter().chain(args));
        assert_eq!(parsed(&["--with", "a,b"]).unwrap().share.with, ["a", "b"]);
        assert!(parsed(&["--public"]).is_ok() && parsed(&["--private"]).is_ok());
        assert!(parsed(&[]).is_err() && parsed(&["--public", "--with", "a"]).is_err());
        let answer =
            |visibility: &str| json!({"model": "m", "visibility": visibility, "tenants": ["a", "b"]});
        assert_eq!(said(&answer("shared")), "a and b may use m");
        assert_eq!(said(&answer("private")), "only its owner may use m");
    }
}
