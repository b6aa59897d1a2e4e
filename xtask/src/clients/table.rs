//! What was seen, for people: a line for each client in one document, every call of it in another.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use modelless_testkit::clients::Verdict;

use super::Client;

const DOCUMENT: &str = "docs/clients.md";
/// What stands between these two lines is written by the command, nothing else is.
const BEGIN: &str = "<!-- begin: written by `cargo xtask clients` -->";
const END: &str = "<!-- end -->";
/// Instead of a version.
const ABSENT: &str = "not installed";
const CALLS: &str = "docs/clients-calls.md";
const CALLS_HEAD: &str = "\
# Every call of every client

Written by `cargo xtask clients`, which makes these calls with unmodified clients against a real `modelless up --demo`. What the
clients are and what the protocols mean here stands in [clients.md](clients.md).
";

pub(super) fn write(root: &Path, clients: &[Client]) -> Result<()> {
    let document = root.join(DOCUMENT);
    let old = fs::read_to_string(&document).with_context(|| format!("reading {DOCUMENT}"))?;
    fs::write(&document, between(&old, &lines(clients))?)?;
    fs::write(root.join(CALLS), calls(clients)).with_context(|| format!("writing {CALLS}"))
}

/// The document with these lines between the two marks.
fn between(document: &str, lines: &str) -> Result<String> {
    let missing = || format!("{DOCUMENT} must have the lines {BEGIN} and {END}, in this order");
    let (before, rest) = document.split_once(BEGIN).with_context(missing)?;
    let (_, after) = rest.split_once(END).with_context(missing)?;
    Ok(format!("{before}{BEGIN}\n{lines}{END}{after}"))
}

/// How many calls passed, failed and were not run.
fn counts(client: &Client) -> (usize, usize, usize) {
    let count = |of: fn(&Verdict) -> bool| client.calls.iter().filter(|call| of(&call.verdict)).count();
    (
        count(|verdict| matches!(verdict, Verdict::Passed)),
        count(|verdict| matches!(verdict, Verdict::Failed(_))),
        count(|verdict| matches!(verdict, Verdict::NotRun(_))),
    )
}

fn lines(clients: &[Client]) -> String {
    let mut lines =
        "| client | version | script | passed | failed | not run |\n|---|---|---|---|---|---|\n".to_owned();
    for client in clients {
        let Client { name, package, version, script, .. } = client;
        let version = match version {
            Some(version) => format!("`{package}=={version}`"),
            None => ABSENT.to_owned(),
        };
        let (passed, failed, not_run) = counts(client);
        let _ = writeln!(lines, "| {name} | {version} | `{script}` | {passed} | {failed} | {not_run} |");
    }
    lines
}

fn calls(clients: &[Client]) -> String {
    let mut text = CALLS_HEAD.to_owned();
    for client in clients {
        let Client { name, package, version, calls, .. } = client;
        let version = version.as_deref().unwrap_or(ABSENT);
        let _ = write!(text, "\n## {name} (`{package}` {version})\n\n| call | |\n|---|---|\n");
        for call in calls {
            let verdict = match &call.verdict {
                Verdict::Passed => "pass".to_owned(),
                Verdict::Failed(why) => format!("**fail**: {}", cell(why)),
                Verdict::NotRun(why) => format!("not run: {}", cell(why)),
            };
            let _ = writeln!(text, "| {} | {verdict} |", cell(&call.call));
        }
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "/").replace('\n', " ")
}

/// The same for a terminal.
pub(super) fn summary(clients: &[Client]) -> String {
    let width = clients.iter().map(|client| client.name.len()).max().unwrap_or(0);
    let mut text = format!("\n{:<width$}  {:<12} passed  failed  not run\n", "client", "version");
    for client in clients {
        let (passed, failed, not_run) = counts(client);
        let _ = writeln!(
            text,
            "{:<width$}  {:<12} {passed:>6}  {failed:>6}  {not_run:>7}",
            client.name,
            client.version.as_deref().unwrap_or(ABSENT)
        );
    }
    let not_run = clients.iter().filter_map(|client| {
        let why = client.calls.iter().find_map(|call| match &call.verdict {
            Verdict::NotRun(why) => Some(why),
            Verdict::Passed | Verdict::Failed(_) => None,
        });
        why.map(|why| format!("{}: not run: {why}\n", client.name))
    });
    text.extend(not_run);
    text
}

/// The calls that failed, and why.
pub(super) fn failures(client: &Client) -> Vec<String> {
    let failed = |call: &modelless_testkit::clients::Call| match &call.verdict {
        Verdict::Failed(why) => Some(format!("{}, {}: {why}", call.client, call.call)),
        Verdict::Passed | Verdict::NotRun(_) => None,
    };
    client.calls.iter().filter_map(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_testkit::clients::Call;

    fn client() -> Client {
        let call = |call: &str, verdict| Call { client: "a HTTP".to_owned(), call: call.to_owned(), verdict };
        let calls = vec![
            call("live", Verdict::Passed),
            call("infer", Verdict::Failed("x | y".to_owned())),
            call("stats", Verdict::NotRun("no a".to_owned())),
        ];
        let (name, package, version) = ("a HTTP".to_owned(), "a".to_owned(), Some("1.2".to_owned()));
        Client { name, package, version, script: "a.py", calls }
    }

    #[test]
    fn what_failed_and_what_was_not_run_is_never_a_pass() {
        assert!(lines(&[client()]).contains("| a HTTP | `a==1.2` | `a.py` | 1 | 1 | 1 |"));
        let absent = Client { version: None, ..client() };
        assert!(lines(&[absent]).contains("| a HTTP | not installed | `a.py` |"));
        let calls = calls(&[client()]);
        assert!(
            calls.contains("| live | pass |\n| infer | **fail**: x / y |\n| stats | not run: no a |"),
            "{calls}"
        );
        assert_eq!(failures(&client()), ["a HTTP, infer: x | y"]);
        assert!(summary(&[client()]).contains("a HTTP: not run: no a"));
    }

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        assert_eq!(between(&document, "new\n").unwrap(), format!("before\n{BEGIN}\nnew\n{END}\nafter\n"));
        assert!(between("nothing", "new\n").is_err());
    }
}
