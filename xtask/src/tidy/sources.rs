//! Sources: short files, no tests that do not run, nothing left open, no path of one machine.

use super::{File, Finding};

/// A file tells one thing; beyond this it tells several.
pub(crate) const MAX_LINES: usize = 600;
/// Worth a look.
const LONG_LINES: usize = 400;

/// Written in two halves, so that this file does not break its own rules.
const OPEN_ENDS: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimpl", "emented!(")];
const MACHINE_PATHS: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/Use", "rs/")];
/// Where a system keeps what its packages bring: code may look there, data that was made must not name it.
const SYSTEM_PATH: &str = concat!("/usr/sh", "are/");
const TESTS_THAT_DO_NOT_RUN: &[&str] =
    &[concat!("#[ig", "nore"), concat!("@pytest.mark.", "skip"), concat!("@unittest.", "skip")];

/// Where people write; data files are not looked into for words.
const WRITTEN: &[&str] =
    &["", "rs", "toml", "md", "py", "sh", "sql", "yml", "yaml", "js", "ts", "html", "css"];

pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let lines = production_lines(file);
        if lines > MAX_LINES {
            findings.push(Finding {
                place: file.path.clone(),
                rule: "length",
                what: format!("{lines} lines of production code, {MAX_LINES} are the limit"),
                mend: "it tells more than one thing: split it where the second begins".to_owned(),
            });
        }
        let written = WRITTEN.contains(&file.ending());
        for (number, line) in file.text.lines().enumerate() {
            let mut add = |rule, what: String, mend: &str| {
                let place = format!("{}:{}", file.path, number + 1);
                findings.push(Finding { place, rule, what, mend: mend.to_owned() });
            };
            if let Some(path) = MACHINE_PATHS.iter().find(|path| has_path(line, path)) {
                add(
                    "paths",
                    format!("names {path}, a path of one machine"),
                    "take a relative path, or ask for it",
                );
            }
            if matches!(file.ending(), "json" | "toml" | "csv" | "svg") && has_path(line, SYSTEM_PATH) {
                add(
                    "paths",
                    format!("names {SYSTEM_PATH}, a path of one machine"),
                    "name the file alone, and say in words where it is from",
                );
            }
            if !written {
                continue;
            }
            if let Some(word) = OPEN_ENDS.iter().find(|word| line.contains(*word)) {
                add(
                    "open ends",
                    format!("says {word}"),
                    "finish it, or say in the documents what is left out",
                );
            }
            if TESTS_THAT_DO_NOT_RUN.iter().any(|mark| line.trim_start().starts_with(mark)) {
                add(
                    "ignored",
                    "a test that does not run".to_owned(),
                    "a test that does not run proves nothing: run or remove it",
                );
            }
        }
    }
    findings
}

/// Files that are allowed but long, the longest first.
pub(crate) fn long(files: &[File]) -> Vec<(&str, usize)> {
    let mut found: Vec<(&str, usize)> = files
        .iter()
        .map(|file| (file.path.as_str(), production_lines(file)))
        .filter(|(_, lines)| (LONG_LINES + 1..=MAX_LINES).contains(lines))
        .collect();
    found.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    found
}

/// The lines before the first test module; none in a file that is all tests.
fn production_lines(file: &File) -> usize {
    let path = &file.path;
    let is_test = path.ends_with("/tests.rs") || path.starts_with("tests/") || path.contains("/tests/");
    if file.ending() != "rs" || is_test {
        return 0;
    }
    file.text.lines().take_while(|line| !line.trim_start().starts_with("#[cfg(test)]")).count()
}

/// Whether a path begins here and not in the middle of a longer one, as in `https://host/work/x`.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~/}>".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: impl Into<String>) -> File {
        File { path: path.to_owned(), text: text.into() }
    }

    fn rules(path: &str, text: impl Into<String>) -> Vec<&'static str> {
        check(&[file(path, text)]).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_long_file_is_named_and_its_tests_do_not_count() {
        let long_file = "x\n".repeat(MAX_LINES + 1);
        assert_eq!(rules("a/src/lib.rs", &*long_file), ["length"]);
        assert!(rules("a/src/tests.rs", &*long_file).is_empty());
        let tested = format!("{}#[cfg(test)]\n{long_file}", "x\n".repeat(MAX_LINES));
        assert!(rules("a/src/lib.rs", &*tested).is_empty());
        assert_eq!(long(&[file("a/src/lib.rs", tested)]), [("a/src/lib.rs", MAX_LINES)]);
    }

    #[test]
    fn open_ends_and_sleeping_tests_are_found_where_people_write() {
        assert_eq!(rules("a.rs", format!("// {} later", OPEN_ENDS[0])), ["open ends"]);
        assert_eq!(rules("a.rs", format!("    {}]", TESTS_THAT_DO_NOT_RUN[0])), ["ignored"]);
        assert!(rules("a.json", OPEN_ENDS[0]).is_empty());
    }

    #[test]
    fn a_path_of_one_machine_is_found_in_any_file() {
        for path in MACHINE_PATHS {
            assert_eq!(rules("a.json", format!("\"{path}x\"")), ["paths"]);
            assert!(rules("a.json", format!("http://host{path}x")).is_empty());
        }
        assert_eq!(rules("a.json", format!("--set {SYSTEM_PATH}x")), ["paths"]);
        assert!(rules("a.rs", SYSTEM_PATH).is_empty());
    }
}
