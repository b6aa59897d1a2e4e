//! The fuzzer's lock file has the product's versions: what is fuzzed is what is shipped.

use super::{File, Finding};
use std::collections::{BTreeMap, BTreeSet};

const PRODUCT: &str = "Cargo.lock";
const FUZZER: &str = "fuzz/Cargo.lock";

pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let of = |path: &str| files.iter().find(|file| file.path == path).map(|file| packages(&file.text));
    let (Some(product), Some(fuzzer)) = (of(PRODUCT), of(FUZZER)) else { return Vec::new() };
    let other = fuzzer.into_iter().filter_map(|(name, versions)| {
        let shipped = product.get(name)?;
        let strange: Vec<&str> = versions.difference(shipped).copied().collect();
        (!strange.is_empty()).then(|| Finding {
            place: FUZZER.to_owned(),
            rule: "fuzzed",
            what: format!("{name} {} is fuzzed, and another version is shipped", strange.join(", ")),
            mend: format!(
                "copy {PRODUCT} there and run `cargo metadata` in fuzz/, which adds the fuzzer's own"
            ),
        })
    });
    other.collect()
}

/// The versions of each package in a lock file.
fn packages(lock: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut name = "";
    for line in lock.lines() {
        let value = |of: &str| line.strip_prefix(of)?.strip_prefix(" = \"")?.strip_suffix('"');
        if let Some(named) = value("name") {
            name = named;
        } else if let Some(version) = value("version") {
            all.entry(name).or_default().insert(version);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_fuzzed_and_not_shipped_is_told() {
        let lock = |path: &str, packages: &[(&str, &str)]| {
            let each = packages.iter().map(|(name, version)| {
                format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"x\"\n")
            });
            File { path: path.to_owned(), text: format!("version = 4\n\n{}", each.collect::<String>()) }
        };
        let product = [("prost", "0.14.4"), ("rand", "0.9.5"), ("rand", "0.10.3")];
        let same = [("prost", "0.14.4"), ("rand", "0.10.3"), ("libfuzzer-sys", "0.4.1")];
        assert!(check(&[lock(PRODUCT, &product), lock(FUZZER, &same)]).is_empty());
        let other = [("prost", "0.14.6"), ("rand", "0.9.5")];
        let found = check(&[lock(PRODUCT, &product), lock(FUZZER, &other)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.starts_with("prost 0.14.6"), "{}", found[0]);
    }
}
