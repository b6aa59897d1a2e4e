//! Where a model's manifest stands, for telling where something is wrong.

use crate::error::Error;
use std::path::{Path, PathBuf};

/// A manifest as it was read, or none at all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Source {
    /// A file.
    File { path: PathBuf, text: String },
    /// Options of a command, each called as the setting that it stands for.
    #[default]
    Options,
}

/// Settings that have an option of their own; whatever else can be wrong is the adapter's.
const OPTIONS: [(&str, &str); 11] = [
    ("labels", "--labels"),
    ("metric", "--metric"),
    ("space", "--space"),
    ("accuracy", "--accuracy"),
    ("engine", "--engine"),
    ("threads", "--threads"),
    ("max_batch", "--max-batch"),
    ("optimisation", "--optimisation"),
    ("processor", "--processor"),
    ("gpu_memory", "--gpu-memory"),
    ("string_bytes", "--string-bytes"),
];
const ADAPTER: &str = "--adapter";

impl Source {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File { path, .. } => path,
            Self::Options => Path::new("the options"),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::File { text, .. } => text,
            Self::Options => "",
        }
    }

    /// The line of a setting (the `nth` of that name), or of a table that is written as `[name`.
    pub(super) fn line(&self, name: &str, nth: usize) -> Option<usize> {
        let key = name.rsplit('.').next().unwrap_or(name);
        let says = |line: &&str| {
            let line = line.trim_start();
            if name.starts_with('[') {
                return line.starts_with(name);
            }
            // Also within an inline table.
            !line.starts_with('#')
                && line.match_indices(key).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    let after = line[at + key.len()..].trim_start();
                    !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
                        && after.starts_with('=')
                })
        };
        let mut lines = self.text().lines().enumerate().filter(|(_, line)| says(line));
        lines.nth(nth).map(|(number, _)| number + 1)
    }

    /// Something is wrong at the first of these settings that stands here.
    pub(super) fn fault_at(&self, settings: &[&str], why: String) -> Error {
        match self {
            Self::File { .. } => self.fault(settings.iter().find_map(|setting| self.line(setting, 0)), why),
            Self::Options => {
                let named = OPTIONS.iter().find(|(setting, _)| settings.contains(setting));
                Error::Manifest { path: named.map_or(ADAPTER, |(_, option)| option).into(), why }
            }
        }
    }

    pub(super) fn fault(&self, line: Option<usize>, why: String) -> Error {
        let why = match line {
            Some(line) => format!("line {line}: {why}"),
            None => why,
        };
        Error::Manifest { path: self.path().to_owned(), why }
    }
}
