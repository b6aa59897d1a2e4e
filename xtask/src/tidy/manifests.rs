//! Manifests: every version in the root's, every crate under the same lints, `no_std` where it is promised.

use super::graph::Graph;
use super::{File, Finding};

/// Crates that can reach no clock, file or thread because they are built without `std`.
const NO_STD: &[&str] = &["modelless-types", "modelless-decision"];

pub(crate) fn check(graph: &Graph, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &graph.members {
        let Some(manifest) = files.iter().find(|file| file.path == member.manifest) else { continue };
        findings.extend(lines(manifest));
        if NO_STD.contains(&member.name.as_str()) {
            let path = manifest.path.replace("Cargo.toml", "src/lib.rs");
            let held = files
                .iter()
                .any(|file| file.path == path && file.text.lines().any(|line| line.trim() == "#![no_std]"));
            if !held {
                findings.push(Finding {
                    place: path,
                    rule: "no_std",
                    what: format!("{} is not `#![no_std]`", member.name),
                    mend:
                        "it decides nothing by a clock, a file or a thread: keep the attribute, use `alloc`"
                            .to_owned(),
                });
            }
        }
    }
    findings
}

fn lines(manifest: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut section = "";
    let mut shares_lints = false;
    for (number, line) in manifest.text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_matches(['[', ']']);
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        shares_lints |= section == "lints" && line == "workspace = true";
        let is_dependency = section.ends_with("dependencies");
        let shared = line.contains(".workspace = true") || line.contains("{ workspace = true");
        let owns_version = section == "package" && line.starts_with("version") && !shared;
        if (is_dependency && !shared) || owns_version || section.contains("dependencies.") {
            findings.push(Finding {
                place: format!("{}:{}", manifest.path, number + 1),
                rule: "versions",
                what: format!("`{line}` names a version or source of its own"),
                mend: "put it in the root's Cargo.toml and write `NAME.workspace = true` here, on one line"
                    .to_owned(),
            });
        }
    }
    if !shares_lints {
        findings.push(Finding {
            place: manifest.path.clone(),
            rule: "lints",
            what: "does not share the workspace's lints".to_owned(),
            mend: "add `[lints]` with `workspace = true`".to_owned(),
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<String> {
        let manifest = File { path: "x/Cargo.toml".to_owned(), text: text.to_owned() };
        lines(&manifest).into_iter().map(|finding| format!("{} {}", finding.rule, finding.place)).collect()
    }

    #[test]
    fn versions_stand_in_the_root() {
        let lints = "[lints]\nworkspace = true\n";
        let good = "[package]\nversion.workspace = true\n[dependencies]\na.workspace = true\n\
                    b = { workspace = true, features = [\"c\"] }\n";
        assert!(rules(&format!("{good}{lints}")).is_empty());
        for bad in ["[dependencies]\na = \"1\"\n", "[dev-dependencies]\na = { path = \"../a\" }\n"] {
            assert_eq!(rules(&format!("{bad}{lints}")), ["versions x/Cargo.toml:2"]);
        }
        assert_eq!(rules(&format!("[package]\nversion = \"1\"\n{lints}")), ["versions x/Cargo.toml:2"]);
        assert_eq!(
            rules(&format!("[dependencies.a]\nversion = \"1\"\n{lints}")),
            ["versions x/Cargo.toml:2"]
        );
    }

    #[test]
    fn every_crate_shares_the_lints() {
        assert_eq!(rules("[package]\n"), ["lints x/Cargo.toml"]);
    }
}
