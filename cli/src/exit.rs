//! What the end of a command means to the shell.

use std::fmt;
use std::io;
use std::process::ExitCode;

const FAILED: u8 = 1;
const REFUSED: u8 = 2;
/// It ended, and a part of it has no answer.
const PARTLY: u8 = 3;
/// As in `sysexits.h`: used wrongly.
const USAGE: u8 = 64;

/// The command was used wrongly.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

/// The platform answered with a named "no" to these goals.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

/// What was asked for ended, but some of it has no answer.
#[derive(Debug)]
pub(crate) struct Partly(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Partly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Partly {}
impl std::error::Error for Usage {}
impl std::error::Error for Refused {}

/// An error for arguments that clap cannot judge.
pub(crate) fn usage(why: impl Into<String>) -> anyhow::Error {
    Usage(why.into()).into()
}

/// Tells what went wrong, once, and gives the exit code.
pub(crate) fn code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    // `modelless task list | head` ends like this, which is nothing to complain about.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("modelless: {}", text(&error));
    number(&error).into()
}

fn number(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        USAGE
    } else if error.is::<Refused>() {
        REFUSED
    } else if error.is::<Partly>() {
        PARTLY
    } else {
        FAILED
    }
}

/// The chain of causes in one line, without those that the one before repeats in its own words.
fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Help and version are fine; everything else that clap refuses is wrong usage.
pub(crate) fn clap(error: &clap::Error) -> ExitCode {
    // If even this cannot be written there is nobody to tell.
    let _ = error.print();
    if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_code_says_what_kind_of_end_it_was() {
        assert_eq!(number(&usage("no")), 64);
        assert_eq!(number(&Refused("no".to_owned()).into()), 2);
        assert_eq!(number(&Partly("no".to_owned()).into()), 3);
        assert_eq!(number(&anyhow::anyhow!("no")), 1);
        let wrapped = Err::<(), _>(usage("no")).context("while trying").unwrap_err();
        assert_eq!(number(&wrapped), 64, "context does not hide what it was");
    }

    #[test]
    fn a_cause_is_not_told_twice() {
        let error = anyhow::Error::from(io::Error::other("disk full")).context("cannot write x: disk full");
        assert_eq!(text(&error), "cannot write x: disk full");
        let error = anyhow::Error::from(io::Error::other("disk full")).context("cannot write x");
        assert_eq!(text(&error), "cannot write x: disk full");
    }
}
