//! Settings of a role: defaults, then a TOML file, then the environment, then flags, each over the one before.
//!
//! What exists is what the defaults have: a name that is not among them is refused, with the one that was probably meant. A
//! table that is empty in the defaults is a list by names that are not ours (`executor.remotes`): it is set as a whole, and what
//! may stand in it is the component's to say.

use crate::environment::PREFIX;
use crate::exit::usage;
use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// Where settings come from.
pub(super) struct Sources<'a> {
    pub(super) file: Option<&'a Path>,
    pub(super) environment: &'a dyn Fn(&str) -> Option<String>,
    /// `section.name=value`, later ones over earlier ones.
    pub(super) flags: &'a [String],
}

/// All of them together.
pub(super) fn load<T: Serialize + DeserializeOwned>(defaults: &T, from: &Sources<'_>) -> anyhow::Result<T> {
    let mut all = serde_json::to_value(defaults)?;
    let known = paths(&all);
    let optional: Vec<&String> =
        known.iter().filter(|name| default_of(&all, name).is_none_or(Value::is_null)).collect();
    if let Some(path) = from.file {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let table: Value = toml::from_str(&text).map_err(|error| no_toml(path, &text, &error))?;
        for (name, value) in leaves(&table, &known) {
            set(&mut all, &known, &name, value).with_context(|| format!("in {}", path.display()))?;
        }
    }
    for name in &known {
        let variable = variable(name);
        // As compose files write what is not set.
        let said =
            (from.environment)(&variable).filter(|text| !(text.is_empty() && optional.contains(&name)));
        if let Some(text) = said {
            let value = from_text(&all, name, &text);
            set(&mut all, &known, name, value).with_context(|| format!("in {variable}"))?;
        }
    }
    for flag in from.flags {
        let (name, text) = flag.split_once('=').ok_or_else(|| {
            // It may be an address with a password where a name was to be.
            let flag = if flag.contains("://") { "…" } else { flag };
            usage(format!("`--set {flag}` gives no value; expected something like --set executor.lanes=2"))
        })?;
        let value = from_text(&all, name, text);
        // Not the value: it may be an address with a password.
        set(&mut all, &known, name, value).with_context(|| format!("in --set {name}"))?;
    }
    serde_json::from_value(all).map_err(|error| usage(format!("these settings cannot be used: {error}")))
}

/// Where and why, without the line itself: it may hold an address with a password.
fn no_toml(path: &Path, text: &str, error: &toml::de::Error) -> anyhow::Error {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    usage(format!("{} is no TOML: line {line}: {}", path.display(), error.message()))
}

/// The settings as a file that would give them again. Passwords are left out.
pub(super) fn print<T: Serialize>(settings: &T) -> anyhow::Result<String> {
    let mut all = serde_json::to_value(settings)?;
    for name in ["database", "redis"] {
        if let Some(Value::String(url)) = all.get_mut(name) {
            *url = modelless_store::redact(url);
        }
    }
    Ok(toml::to_string_pretty(&without_nulls(all))?)
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            // Plain values first: in TOML what follows a section belongs to it.
            let (sections, plain): (Vec<_>, Vec<_>) = map
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .partition(|(_, value)| value.is_object());
            let all = plain.into_iter().chain(sections);
            Value::Object(all.map(|(name, value)| (name, without_nulls(value))).collect::<Map<_, _>>())
        }
        Value::Array(all) => Value::Array(all.into_iter().map(without_nulls).collect()),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

/// What the settings are called in the environment.
pub(super) fn variables<T: Serialize>(defaults: &T) -> anyhow::Result<Vec<String>> {
    Ok(paths(&serde_json::to_value(defaults)?).iter().map(|name| variable(name)).collect())
}

fn paths(defaults: &Value) -> Vec<String> {
    leaves(defaults, &[]).into_iter().map(|(name, _)| name).collect()
}

/// The values of a tree with their paths; what `whole` names is one value, whatever is in it.
fn leaves(value: &Value, whole: &[String]) -> Vec<(String, Value)> {
    fn walk(at: &str, value: &Value, whole: &[String], into: &mut Vec<(String, Value)>) {
        match value {
            // A section of which nothing is set, or whose lines are comments.
            Value::Object(map) if map.is_empty() && is_section(at, whole) => {}
            Value::Object(map)
                if at.is_empty() || !(map.is_empty() || whole.iter().any(|name| name == at)) =>
            {
                for (name, value) in map {
                    let name = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    walk(&name, value, whole, into);
                }
            }
            Value::Object(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => into.push((at.to_owned(), value.clone())),
        }
    }
    let mut all = Vec::new();
    walk("", value, whole, &mut all);
    all
}

/// Whether there are settings under a name.
fn is_section(at: &str, known: &[String]) -> bool {
    known.iter().any(|name| name.strip_prefix(at).is_some_and(|rest| rest.starts_with('.')))
}

fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('.', "__").to_ascii_uppercase())
}

/// Text stays text where the default is text; elsewhere it is what it looks like.
fn from_text(all: &Value, name: &str, text: &str) -> Value {
    if matches!(default_of(all, name), Some(Value::String(_))) {
        return Value::String(text.to_owned());
    }
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

fn default_of<'a>(all: &'a Value, name: &str) -> Option<&'a Value> {
    name.split('.').try_fold(all, |value, part| value.get(part))
}

fn set(all: &mut Value, known: &[String], name: &str, value: Value) -> anyhow::Result<()> {
    if !known.iter().any(|known| known == name) {
        let meant = nearest(name, known.iter().map(String::as_str));
        let hint = meant.map_or(String::new(), |meant| format!("did you mean `{meant}`? "));
        return Err(usage(format!("there is no setting `{name}`; {hint}--print-config shows all")));
    }
    let place = name.split('.').fold(all, |value, part| &mut value[part]);
    *place = value;
    Ok(())
}

/// The one that was probably meant.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let nearest = known.min_by_key(|known| distance(known, name))?;
    // A part that all names have in common says nothing about which is meant.
    let own = name.strip_prefix(PREFIX).unwrap_or(name).len();
    (distance(nearest, name) <= own / 2 + 1).then_some(nearest)
}

/// How many letters must change (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut before = i;
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = before + usize::from(from != *to);
            before = row[j + 1];
            row[j + 1] = change.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use serde::Deserialize;
    use std::collections::BTreeMap;
    use std::io::Write as _;

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Inner {
        lanes: u16,
        name: String,
        servers: BTreeMap<String, Known>,
    }

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Known {
        price: Option<u64>,
        token: Option<String>,
    }

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Outer {
        database: String,
        redis: Option<String>,
        nodes: Vec<String>,
        list: Vec<Known>,
        executor: Inner,
    }

    fn defaults() -> Outer {
        let executor = Inner { lanes: 1, name: "local".into(), servers: BTreeMap::new() };
        Outer { database: String::new(), redis: None, nodes: Vec::new(), list: Vec::new(), executor }
    }

    fn with(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> anyhow::Result<Outer> {
        let folder = modelless_testkit::temp_dir("settings").unwrap();
        let path = folder.path().join("a.toml");
        fs::File::create(&path).unwrap().write_all(file.as_bytes()).unwrap();
        let environment = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        load(&defaults(), &Sources { file: Some(&path), environment: &environment, flags: &flags })
    }

    #[test]
    fn each_source_stands_over_the_one_before() {
        assert_eq!(with("", &[], &[]).unwrap(), defaults());
        let file = "database = 'a'\nnodes = ['x:1']\n[executor]\nlanes = 2\nname = '7'";
        let all = with(file, &[], &[]).unwrap();
        assert_eq!((all.database.as_str(), all.executor.lanes, all.executor.name.as_str()), ("a", 2, "7"));
        assert_eq!(all.nodes, ["x:1"]);
        let environment = [("MODELLESS_EXECUTOR__LANES", "3"), ("MODELLESS_REDIS", "redis://r")];
        let all = with(file, &environment, &[]).unwrap();
        assert_eq!((all.executor.lanes, all.redis.as_deref()), (3, Some("redis://r")));
        let all =
            with(file, &environment, &["executor.lanes=4", "executor.name=8", "nodes=[\"y:2\"]"]).unwrap();
        assert_eq!((all.executor.lanes, all.executor.name.as_str(), all.nodes[0].as_str()), (4, "8", "y:2"));
    }

    #[test]
    fn a_name_that_does_not_exist_is_refused_with_the_one_that_was_meant() {
        for wrong in [with("[executor]\nlane = 2", &[], &[]), with("", &[], &["executor.lane=2"])] {
            let error = wrong.unwrap_err();
            assert!(error.root_cause().is::<Usage>(), "{error:#}");
            let text = format!("{error:#}");
            assert!(
                text.contains("`executor.lane`") && text.contains("did you mean `executor.lanes`"),
                "{text}"
            );
        }
        let text = format!("{:#}", with("", &[], &["zebra=2"]).unwrap_err());
        assert!(text.contains("`zebra`") && !text.contains("mean"), "{text}");
        let text = format!("{:#}", with("", &[], &["executor.lanes=many"]).unwrap_err());
        assert!(text.contains("many"), "{text}");
        assert!(with("", &[], &["lanes"]).is_err() && with("a b", &[], &[]).is_err());
    }

    #[test]
    fn a_list_by_names_of_others_is_set_by_file_environment_and_flag() {
        let file = "[executor.servers.\"10.0.0.7:8001\"]\nprice = 7\n[executor.servers.here]\ntoken = 'x'";
        let all = with(file, &[], &[]).unwrap();
        let servers = &all.executor.servers;
        assert_eq!((servers["10.0.0.7:8001"].price, servers["here"].token.as_deref()), (Some(7), Some("x")));
        assert_eq!(with(&print(&all).unwrap(), &[], &[]).unwrap(), all, "{}", print(&all).unwrap());
        let name = variable("executor.servers");
        let environment = [(name.as_str(), r#"{"a.b:1": {"price": 1}}"#)];
        let all = with(file, &environment, &[]).unwrap();
        assert_eq!(
            all.executor.servers.keys().collect::<Vec<_>>(),
            ["a.b:1"],
            "it stands in place of the file's"
        );
        let all = with(file, &environment, &[r#"executor.servers={"c:1": {}}"#]).unwrap();
        assert_eq!(all.executor.servers.keys().collect::<Vec<_>>(), ["c:1"]);
        for wrong in [r#"executor.servers={"c:1": {"colour": 1}}"#, "executor.servers=c:1"] {
            let error = with("", &[], &[wrong]).unwrap_err();
            assert!(error.root_cause().is::<Usage>(), "{error:#}");
        }
    }

    #[test]
    fn what_is_printed_gives_the_same_settings_again_but_no_password() {
        let all = with("redis = 'redis://r'", &[], &["executor.lanes=9"]).unwrap();
        assert_eq!(with(&print(&all).unwrap(), &[], &[]).unwrap(), all);
        let secret = with("database = 'postgres://me:secret@host/db'", &[], &[]).unwrap();
        let shown = print(&secret).unwrap();
        assert!(!shown.contains("secret") && shown.contains("postgres://me:***@host/db"), "{shown}");
        let elsewhere = with("database = 'postgres://host/db?password=secret'", &[], &[]).unwrap();
        assert!(!print(&elsewhere).unwrap().contains("secret"));
    }

    #[test]
    fn a_section_whose_lines_are_comments_is_as_if_it_were_not_there() {
        let all = with("[executor]\n# lanes = 2\n[executor.servers]", &[], &[]).unwrap();
        assert_eq!(all, defaults());
        assert!(with("[executer]", &[], &[]).is_err());
    }

    #[test]
    fn an_empty_variable_leaves_unset_what_needs_no_value() {
        let empty = [("MODELLESS_REDIS", "")];
        assert_eq!(with("", &empty, &[]).unwrap().redis, None);
        assert_eq!(with("redis = 'r'", &empty, &[]).unwrap().redis.as_deref(), Some("r"));
        assert!(with("", &[("MODELLESS_EXECUTOR__LANES", "")], &[]).is_err());
    }

    #[test]
    fn an_entry_of_a_list_of_which_something_is_not_known_can_be_printed() {
        let all = with("list = [{ price = 3 }]", &[], &[]).unwrap();
        assert_eq!(all.list, [Known { price: Some(3), token: None }]);
        assert_eq!(with(&print(&all).unwrap(), &[], &[]).unwrap(), all);
    }

    #[test]
    fn no_password_is_told_of_what_cannot_be_read() {
        let address = "postgres://me:SECRET@host/db";
        let file = format!("[executor]\nlanes = 1\ndatabase = {address}");
        let flag = format!("databse={address}");
        for (wrong, told) in
            [(with(&file, &[], &[]), "line 3"), (with("", &[], &[&flag]), "did you mean `database`")]
        {
            let text = format!("{:#}", wrong.unwrap_err());
            assert!(!text.contains("SECRET") && text.contains(told), "{text}");
        }
    }
}
