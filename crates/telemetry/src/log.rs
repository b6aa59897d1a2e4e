//! The log of the process: to standard error, for people or for programs.

use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Says what is logged, in the notation of `RUST_LOG`: `info,modelless_gateway=debug`.
pub const FILTER_VARIABLE: &str = "MODELLESS_LOG";

/// Says how lines look: `human` or `json`.
pub const FORMAT_VARIABLE: &str = "MODELLESS_LOG_FORMAT";

/// How lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter cannot be read.
    #[error(
        "the log filter {given:?} cannot be read: {why}; write it as `info` or `info,modelless_gateway=debug`"
    )]
    Filter {
        /// As given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such form.
    #[error("the form of the log {0:?} is none; set MODELLESS_LOG_FORMAT to human or json")]
    Format(String),
    /// Somebody set one up before.
    #[error("the log of this process was set up before")]
    AlreadySet,
}

/// Sets up the log of this process as the environment says; what it does not say is `usual`.
pub fn init_from_environment(usual: &str) -> Result<(), Error> {
    let filter = filter_from_environment().unwrap_or_else(|| usual.to_owned());
    let said = std::env::var(FORMAT_VARIABLE).ok();
    init(Format::parse(said.as_deref().unwrap_or_default())?, &filter)
}

impl Format {
    fn parse(text: &str) -> Result<Self, Error> {
        match text.trim() {
            "" | "human" => Ok(Self::Human),
            "json" => Ok(Self::Json),
            other => Err(Error::Format(other.to_owned())),
        }
    }
}

/// Sets up the log of this process. `filter` is what the environment says, or the program's default.
pub fn init(format: Format, filter: &str) -> Result<(), Error> {
    let filter = parse(filter)?;
    let ansi = std::io::stderr().is_terminal();
    subscriber(format, filter, ansi, std::io::stderr).try_init().map_err(|_| Error::AlreadySet)
}

/// What the environment asks to be logged, if it does.
pub fn filter_from_environment() -> Option<String> {
    std::env::var(FILTER_VARIABLE).ok().filter(|text| !text.trim().is_empty())
}

fn parse(filter: &str) -> Result<EnvFilter, Error> {
    EnvFilter::try_new(filter)
        .map_err(|error| Error::Filter { given: filter.to_owned(), why: error.to_string() })
}

fn subscriber<W>(
    format: Format,
    filter: EnvFilter,
    ansi: bool,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        Format::Human => Box::new(registry.with(lines.with_ansi(ansi).with_target(false))),
        Format::Json => Box::new(registry.with(lines.json().flatten_event(true))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: Format, filter: &str) -> String {
        let lines = Lines::default();
        let out = lines.clone();
        let subscriber = subscriber(format, parse(filter).unwrap(), false, move || out.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(task = "fashion", "a table came");
            tracing::debug!("not asked for");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn people_get_a_line_and_programs_an_object() {
        let line = logged(Format::Human, "info");
        assert!(line.contains("INFO") && line.contains("a table came") && line.contains("fashion"), "{line}");
        let object = logged(Format::Json, "info");
        assert!(object.starts_with('{') && object.contains("\"task\":\"fashion\""), "{object}");
        assert_eq!(object.lines().count(), 1, "{object}");
    }

    #[test]
    fn the_filter_is_obeyed_and_a_bad_one_named() {
        assert_eq!(logged(Format::Human, "warn"), "");
        assert!(logged(Format::Human, "debug").contains("not asked for"));
        let error = parse("modelless=loud").unwrap_err().to_string();
        assert!(error.contains("modelless=loud"), "{error}");
    }

    #[test]
    fn a_form_that_is_none_is_named() {
        assert_eq!(Format::parse("").unwrap(), Format::Human);
        assert_eq!(Format::parse("json").unwrap(), Format::Json);
        assert!(Format::parse("xml").unwrap_err().to_string().contains("MODELLESS_LOG_FORMAT"));
    }
}
