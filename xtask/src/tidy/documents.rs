//! Documents: every decision record is in the index, every measurement that is named exists.

use std::collections::BTreeSet;

use super::{File, Finding};

const RECORDS: &str = "docs/adr/";
const INDEX: &str = "docs/adr/README.md";
const MEASURE: &str = "cargo xtask measure ";

pub(crate) fn check(files: &[File], measures: &[&str]) -> Vec<Finding> {
    let mut findings = records(files);
    for file in files.iter().filter(|file| file.ending() == "md") {
        for (number, line) in file.text.lines().enumerate() {
            for name in named_measures(line) {
                if !measures.contains(&name.as_str()) {
                    findings.push(Finding {
                        place: format!("{}:{}", file.path, number + 1),
                        rule: "measures",
                        what: format!("names the measurement `{name}`, which does not exist"),
                        mend: format!("there are: {}", measures.join(", ")),
                    });
                }
            }
        }
    }
    findings
}

/// `docs/adr/NNNN-title.md`, each linked from the index, each number once.
fn records(files: &[File]) -> Vec<Finding> {
    let index = files.iter().find(|file| file.path == INDEX).map_or("", |file| file.text.as_str());
    let mut numbers = BTreeSet::new();
    let mut findings = Vec::new();
    for file in files {
        let Some(name) = file.path.strip_prefix(RECORDS).filter(|name| *name != "README.md") else {
            continue;
        };
        let mut add = |what: String, mend: String| {
            findings.push(Finding { place: file.path.clone(), rule: "records", what, mend });
        };
        let number = name.get(..5).filter(|start| {
            start.ends_with('-') && start[..4].chars().all(|c| c.is_ascii_digit()) && file.ending() == "md"
        });
        match number {
            None => add("is not named NNNN-title.md".to_owned(), "name it so".to_owned()),
            Some(number) if !numbers.insert(number) => {
                add(format!("the number {} is taken", &number[..4]), "take the next free one".to_owned());
            }
            Some(_) => {}
        }
        if !index.contains(name) {
            add(format!("is not in {INDEX}"), format!("add a line that links {name}"));
        }
    }
    findings
}

/// The names after the command, as far as they are names and not placeholders or options.
fn named_measures(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in line.match_indices(MEASURE) {
        let rest = &line[at + MEASURE.len()..];
        let code = rest.split(['`', '|', '#', '(', ')', ',', ';', '"']).next().unwrap_or_default();
        let words = code.split_whitespace().filter(|word| !word.starts_with('-'));
        let is_name =
            |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        // One name: what follows it may be prose.
        names.extend(words.take(1).filter(is_name).map(str::to_owned));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn reads_the_names_after_the_command() {
        assert_eq!(named_measures("run `cargo xtask measure --short pick` again"), ["pick"]);
        assert_eq!(named_measures("cargo xtask measure idle-memory # both"), ["idle-memory"]);
        assert!(named_measures("`cargo xtask measure NAME` or `cargo xtask measure --list`").is_empty());
    }

    #[test]
    fn a_measurement_that_is_named_exists() {
        let files = [file("README.md", "see `cargo xtask measure pick`")];
        assert!(check(&files, &["pick"]).is_empty());
        assert_eq!(check(&files, &["start"])[0].rule, "measures");
    }

    #[test]
    fn every_record_is_in_the_index_under_a_number_of_its_own() {
        let one = file("docs/adr/0001-core.md", "");
        assert_eq!(records(std::slice::from_ref(&one)).len(), 1, "there is no index");
        let index = file(INDEX, "- [core](0001-core.md)\n- [other](0001-other.md)");
        assert!(records(&[file("docs/adr/0001-core.md", ""), index]).is_empty());
        let index = file(INDEX, "0001-core.md 0001-other.md");
        let found = records(&[one, file("docs/adr/0001-other.md", ""), index]);
        assert_eq!(found[0].what, "the number 0001 is taken");
    }
}
