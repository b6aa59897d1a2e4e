//! What the program in the box says, line by line: bounded in length, in all, and to what it was asked for.

use super::run::Piece;
use modelless_engine::Entered;
use serde::Deserialize;
use std::collections::BTreeSet;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

/// What the program may say in all, and in one line, in bytes.
const SAID: u64 = 64 << 20;
const LINE: u64 = 1 << 20;

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step<'a> {
    /// In a few words.
    pub what: &'a str,
    /// How much of it is done.
    pub done: u64,
    /// How much there is.
    pub of: u64,
}

/// A line of what the program says.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Step { step: String, done: u64, of: u64 },
    Variant { variant: Box<Piece> },
    Error { error: Failed },
    Done { done: bool },
    Boxed(Entered),
}

/// Why it ended, with a name for programs and words for people.
#[derive(PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Failed {
    pub(super) name: String,
    pub(super) text: String,
}

impl Failed {
    fn new(name: &str, text: String) -> Self {
        Self { name: name.to_owned(), text }
    }
}

/// What there is to hear.
pub(super) struct Wanted {
    /// By base and recipe.
    pub(super) pieces: BTreeSet<(String, String)>,
    /// Whether a box with a layer missing will do.
    pub(super) unboxed: bool,
}

/// Hears it out: what it made, and whether it said that this was all.
pub(super) async fn listen(
    out: impl AsyncRead + Unpin,
    Wanted { mut pieces, unboxed }: Wanted,
    report: &mut (dyn FnMut(Step<'_>) + Send),
) -> Result<(Vec<Piece>, bool), Failed> {
    let mut out = BufReader::new(out);
    let (mut left, mut line) = (SAID, Vec::new());
    let (mut made, mut ended) = (Vec::new(), false);
    loop {
        line.clear();
        let read = (&mut out).take(LINE.min(left)).read_until(b'\n', &mut line).await;
        // What cannot be read any more has ended; how, its status says.
        if read.unwrap_or(0) == 0 {
            if left > 0 {
                return Ok((made, ended));
            }
        } else {
            left -= u64::try_from(line.len()).unwrap_or(left);
        }
        if left == 0 || (line.len() as u64 == LINE && line.last() != Some(&b'\n')) {
            let why = format!(
                "the program that makes them said more than {} MiB, or {} MiB in one line, and was ended",
                SAID >> 20,
                LINE >> 20
            );
            return Err(Failed::new("says-too-much", why));
        }
        // What is no such line is of a library that talks.
        match serde_json::from_slice::<Line>(&line) {
            Ok(Line::Step { step, done, of }) => report(Step { what: &step, done, of }),
            Ok(Line::Variant { variant }) => {
                if !pieces.remove(&(variant.base.clone(), variant.recipe.clone())) {
                    let why = format!("nobody asked for {:?}, or it was told before", variant.name);
                    return Err(Failed::new("not-as-told", why));
                }
                made.push(*variant);
            }
            Ok(Line::Error { error }) => return Err(error),
            Ok(Line::Done { done }) => ended = done,
            Ok(Line::Boxed(entered)) => {
                let missing = entered.boxed.missing_of_box();
                if !missing.is_empty() && !unboxed {
                    let why = format!(
                        "this kernel cannot keep the program that makes them from the rest of this machine ({}); a model that \
                         was made to do harm could read files or reach the network. Nothing was started: use a machine whose \
                         kernel has it, or say --unboxed if you trust the model",
                        missing.join("; ")
                    );
                    return Err(Failed::new("no-box", why));
                }
                for warning in entered.boxed.warnings_of_box() {
                    tracing::warn!(%warning, "variants are made in a box with a hole");
                }
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is heard of a text, where `fp16` of the parent was asked for.
    async fn heard(text: &str, unboxed: bool) -> Result<(Vec<Piece>, bool), Failed> {
        let pieces = BTreeSet::from([(String::new(), "fp16".to_owned())]);
        listen(text.as_bytes(), Wanted { pieces, unboxed }, &mut |_| ()).await
    }

    fn refused(recipe: &str) -> String {
        format!(
            r#"{{"variant": {{"base": "", "recipe": "{recipe}", "name": "{recipe}", "precision": "fp16", "outcome": "refused"}}}}"#
        )
    }

    #[tokio::test]
    async fn lines_of_the_program_are_told_apart() {
        let said = format!(
            "{{\"step\": \"x\", \"done\": 1, \"of\": 2}}\na library\n{}\n{{\"done\": true}}\n",
            refused("fp16")
        );
        let (pieces, ended) = heard(&said, false).await.unwrap();
        assert_eq!((pieces.len(), pieces[0].recipe.as_str(), ended), (1, "fp16", true));
        let failed =
            heard("{\"error\": {\"name\": \"disk-full\", \"text\": \"no room\"}}", false).await.unwrap_err();
        assert_eq!(failed, Failed::new("disk-full", "no room".to_owned()));
        assert!(!heard("", false).await.unwrap().1);
    }

    #[tokio::test]
    async fn only_what_was_asked_for_is_taken_and_once() {
        for said in [refused("int8-dynamic"), format!("{0}\n{0}", refused("fp16"))] {
            assert_eq!(heard(&said, false).await.unwrap_err().name, "not-as-told", "{said}");
        }
    }

    #[tokio::test]
    async fn what_says_too_much_is_not_heard_out() {
        let long = usize::try_from(LINE).unwrap();
        let one_line = "x".repeat(long);
        assert_eq!(heard(&one_line, false).await.unwrap_err().name, "says-too-much");
        let lines = format!("{}\n", "x".repeat(long - 2)).repeat(65);
        assert_eq!(heard(&lines, false).await.unwrap_err().name, "says-too-much");
        let fits = format!("{}\n{{\"done\": true}}", "x".repeat(long - 1));
        assert!(heard(&fits, false).await.unwrap().1);
    }

    #[tokio::test]
    async fn a_box_that_lacks_a_layer_is_refused_unless_it_is_said_to_do() {
        let on = r#""limits": "on", "capabilities": "on", "seccomp": "on", "undumpable": "off""#;
        let said = |landlock: &str| {
            format!("{{\"boxed\": {{\"layers\": {{{on}, \"landlock\": {landlock}}}}}}}\n{{\"done\": true}}")
        };
        let without = said(r#"{"missing": "no such call"}"#);
        let failed = heard(&without, false).await.unwrap_err();
        assert_eq!(failed.name, "no-box");
        assert!(
            failed.text.contains("landlock: no such call") && failed.text.contains("--unboxed"),
            "{}",
            failed.text
        );
        assert!(heard(&without, true).await.unwrap().1);
        for landlock in [r#""on""#, r#"{"partly": "no TCP"}"#] {
            assert!(heard(&said(landlock), false).await.unwrap().1);
        }
    }
}
