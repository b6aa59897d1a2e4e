//! The crates and who uses whom, out of `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Dev,
    Build,
}

/// A crate of this workspace.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Its manifest, relative to the root.
    pub(crate) manifest: String,
    /// What it declares, by the package's real name.
    pub(crate) uses: Vec<(String, Kind)>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) members: Vec<Member>,
    /// Resolved normal dependencies of every package, by name. Two versions of one package are one entry: a wall
    /// is about what is used, not about which version.
    pub(crate) normal: BTreeMap<String, BTreeSet<String>>,
    /// What runs in the compiler and not in the program.
    pub(crate) proc_macros: BTreeSet<String>,
}

impl Graph {
    pub(crate) fn is_member(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }

    /// Everything that gets linked into a crate, itself left out. A procedural macro is listed, but what it uses
    /// in turn only runs in the compiler.
    pub(crate) fn closure(&self, name: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut open = vec![name];
        while let Some(next) = open.pop() {
            if self.proc_macros.contains(next) {
                continue;
            }
            for used in self.normal.get(next).into_iter().flatten() {
                if found.insert(used.as_str()) {
                    open.push(used);
                }
            }
        }
        found
    }
}

pub(crate) fn read(metadata: &Value) -> Result<Graph> {
    let root = text(metadata, "workspace_root")?;
    let ids: BTreeSet<&str> = list(metadata, "workspace_members")?.iter().filter_map(Value::as_str).collect();
    let mut names = BTreeMap::new();
    let mut graph = Graph::default();
    for package in list(metadata, "packages")? {
        let (id, name) = (text(package, "id")?, text(package, "name")?);
        names.insert(id, name);
        if list(package, "targets")?.iter().any(|target| has(&target["kind"], "proc-macro")) {
            graph.proc_macros.insert(name.to_owned());
        }
        if ids.contains(id) {
            let manifest = text(package, "manifest_path")?;
            let manifest = manifest.strip_prefix(root).unwrap_or(manifest).trim_start_matches('/').to_owned();
            let uses = list(package, "dependencies")?
                .iter()
                .map(|used| Ok((text(used, "name")?.to_owned(), kind(&used["kind"]))))
                .collect::<Result<_>>()?;
            graph.members.push(Member { name: name.to_owned(), manifest, uses });
        }
    }
    for node in list(&metadata["resolve"], "nodes")? {
        let name = *names.get(text(node, "id")?).context("a resolved package that is not listed")?;
        let used = list(node, "deps")?
            .iter()
            .filter(|dep| dep["dep_kinds"].as_array().into_iter().flatten().any(|k| k["kind"].is_null()))
            .filter_map(|dep| names.get(dep["pkg"].as_str()?).map(|&name| name.to_owned()));
        graph.normal.entry(name.to_owned()).or_default().extend(used);
    }
    Ok(graph)
}

fn kind(value: &Value) -> Kind {
    match value.as_str() {
        Some("dev") => Kind::Dev,
        Some("build") => Kind::Build,
        Some(_) | None => Kind::Normal,
    }
}

fn has(list: &Value, wanted: &str) -> bool {
    list.as_array().into_iter().flatten().any(|item| item == wanted)
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("cargo metadata has no `{key}`"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("cargo metadata has no `{key}`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_members_and_what_is_linked_into_them() {
        let package = |name: &str, kind: &str, uses: Value| {
            json!({"id": name, "name": name, "manifest_path": format!("/r/{name}/Cargo.toml"),
                   "targets": [{"kind": [kind]}], "dependencies": uses})
        };
        let node = |id: &str, uses: &[(&str, Option<&str>)]| {
            let deps: Vec<Value> =
                uses.iter().map(|(pkg, kind)| json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]})).collect();
            json!({"id": id, "deps": deps})
        };
        let metadata = json!({
            "workspace_root": "/r",
            "workspace_members": ["ours"],
            "packages": [
                package("ours", "lib", json!([{"name": "serde", "kind": null}, {"name": "proptest", "kind": "dev"}])),
                package("serde", "lib", json!([])),
                package("derive", "proc-macro", json!([])),
                package("syn", "lib", json!([])),
                package("proptest", "lib", json!([])),
            ],
            "resolve": {"nodes": [
                node("ours", &[("serde", None), ("proptest", Some("dev"))]),
                node("serde", &[("derive", None)]),
                node("derive", &[("syn", None)]),
            ]},
        });
        let graph = read(&metadata).unwrap();
        assert_eq!(graph.members[0].manifest, "ours/Cargo.toml");
        assert_eq!(graph.members[0].uses[1], ("proptest".to_owned(), Kind::Dev));
        assert_eq!(graph.closure("ours"), BTreeSet::from(["serde", "derive"]));
    }
}
