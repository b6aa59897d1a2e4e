//! Standard output, for what was asked for. Everything else a command has to say goes to standard error.

use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};

/// One line, or several, at once.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// For programs.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}
