//! The table of clients tells the versions that are tested: those that the requirements pin.

use super::{File, Finding};

const DOCUMENT: &str = "docs/clients.md";
const PINS: [&str; 2] = ["tests/requirements.txt", "tests/perf-analyzer.txt"];
/// Comes as a dependency of others, in the version that they take.
const UNPINNED: &str = "grpcio";

pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
    let pins: Vec<(&str, &str)> = PINS.iter().flat_map(|path| text(path).lines().filter_map(pin)).collect();
    let mut findings = Vec::new();
    for (number, line) in text(DOCUMENT).lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        // A line of the table has its package and version as a requirement in its second cell.
        let told = line.split('|').nth(2).map(|cell| cell.trim().trim_matches('`')).and_then(pin);
        let Some((package, version)) = told.filter(|(package, _)| *package != UNPINNED) else { continue };
        let pinned = pins.iter().find(|(name, _)| *name == package).map(|(_, version)| *version);
        if pinned != Some(version) {
            let what = match pinned {
                Some(pinned) => format!("tells {package} {version}, and {pinned} is tested"),
                None => format!("tells {package} {version}, which is tested by no requirement"),
            };
            findings.push(Finding {
                place: format!("{DOCUMENT}:{}", number + 1),
                rule: "clients",
                what,
                mend: "`cargo xtask clients` writes the table anew".to_owned(),
            });
        }
    }
    findings
}

/// `name[extras]==version ...`, without the extras.
fn pin(line: &str) -> Option<(&str, &str)> {
    let (name, version) = line.split_once("==")?;
    Some((name.split('[').next()?, version.split_whitespace().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(row: &str) -> usize {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let requirements = "# clients\ntritonclient[http,grpc]==2.73.0\n";
        let perf = "perf-analyzer==2.60.0 --hash=sha256:00\n";
        check(&[file(PINS[0], requirements), file(PINS[1], perf), file(DOCUMENT, row)]).len()
    }

    #[test]
    fn a_version_that_is_not_the_tested_one_is_found() {
        for row in [
            "| a | `tritonclient==2.73.0` |",
            "| a | `perf-analyzer==2.60.0` |",
            "| a | `grpcio==1.0` |",
            "| a | not installed |",
        ] {
            assert_eq!(found(row), 0, "{row}");
        }
        for row in [
            "| a | `tritonclient==2.72.0` |",
            "| a | `openai==1.0` |",
            "| a | `perf-analyzer==not installed` |",
        ] {
            assert_eq!(found(row), 1, "{row}");
        }
    }
}
