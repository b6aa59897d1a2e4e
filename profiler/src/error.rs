//! What can go wrong, in words for whoever registers a model.

use modelless_adapter::{InputError, OutputError, PrepareError, SpecError};
use modelless_engine::{BatchError, EngineError};
use std::io;
use std::path::PathBuf;

/// What to do where a disk is full.
fn room(error: &io::Error) -> &'static str {
    let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if full { "; make room and start again: nothing half-written is taken for whole" } else { "" }
}

/// Why something could not be measured or registered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}{}", path.display(), room(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A model's inputs cannot be written down.
    #[error("the inputs of {model:?} cannot be dumped: {why}")]
    Dump {
        /// The model's name.
        model: String,
        /// Why.
        why: String,
    },
    /// A labelled set cannot be cut in two.
    #[error("the labelled set {set:?} cannot be used to make variants: {why}")]
    Calibration {
        /// The set's name.
        set: String,
        /// What is wrong with it.
        why: String,
    },
    /// What making variants needs cannot be had.
    #[error("{0}")]
    Tools(String),
    /// Variants could not be made.
    #[error("no variants of {model:?} could be made ({name}): {why}")]
    Generator {
        /// The model's name.
        model: String,
        /// What it is called for programs.
        name: String,
        /// What happened.
        why: String,
    },
    /// A manifest is not what it should be.
    #[error("{}: {why}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A labelled set is not what it should be.
    #[error("the labelled set {}: {why}", path.display())]
    Set {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A labelled set does not belong to the task.
    #[error("the labelled set {set:?} does not fit the task {task:?}: {why}")]
    SetMismatch {
        /// The set's name.
        set: String,
        /// The task's name.
        task: String,
        /// What does not fit.
        why: String,
    },
    /// An item of a labelled set cannot be used.
    #[error("item {item} of the labelled set {set:?} cannot be used: {source}")]
    Item {
        /// Which, from 0.
        item: usize,
        /// The set's name.
        set: String,
        /// Why.
        source: InputError,
    },
    /// The adapter cannot be used with the task.
    #[error("the adapter of {model:?} does not fit: {source}")]
    Adapter {
        /// The model's name.
        model: String,
        /// Why.
        source: SpecError,
    },
    /// Its output space.
    #[error("the output space of {model:?}: {why}")]
    Space {
        /// The model's name.
        model: String,
        /// What is wrong with it.
        why: String,
    },
    /// A variant's artefact is none for the model.
    #[error("the artefact of {variant:?} does not fit: {why}")]
    Unfit {
        /// The variant's name.
        variant: String,
        /// What is wrong with it.
        why: String,
    },
    /// An input cannot be written into a batch.
    #[error("an input cannot be prepared for {variant:?}: {source}")]
    Prepare {
        /// The variant's name.
        variant: String,
        /// Why.
        source: PrepareError,
    },
    /// What a variant gives is no answer.
    #[error("{variant:?} gives no usable output: {source}")]
    Output {
        /// The variant's name.
        variant: String,
        /// Why.
        source: OutputError,
    },
    /// A variant cannot be loaded.
    #[error("{variant:?} {}", by_engine(why))]
    Engine {
        /// The variant's name.
        variant: String,
        /// Why. No `source`: it has its own words with numbers.
        why: EngineError,
    },
    /// A batch failed.
    #[error("{variant:?} failed while it was measured with a batch of {batch}: {source}")]
    Batch {
        /// The variant's name.
        variant: String,
        /// Items in the batch.
        batch: u32,
        /// Why.
        source: BatchError,
    },
    /// What it answers cannot be compared.
    #[error("{variant:?} cannot be compared: {why}")]
    TooMuch {
        /// The variant's name.
        variant: String,
        /// How much it was, and how much would be taken.
        why: String,
    },
    /// Nothing says how accurate a variant is.
    #[error(
        "nothing says how accurate {0:?} is: name a labelled set to measure it with, or declare its `accuracy`"
    )]
    NoAccuracy(String),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] modelless_store::Error),
    /// The work was cut short.
    #[error("measuring was cut short: {0}")]
    Cancelled(String),
}

/// What an engine says of a variant, without the numbers under which that was loaded: they were made up for measuring it.
fn by_engine(why: &EngineError) -> String {
    match why {
        EngineError::Refused { why, .. } => format!("cannot be loaded: {why}"),
        EngineError::Crashed { cause, .. } => format!("cannot be loaded: its runner died: {cause}"),
        EngineError::Stuck { limit, .. } => {
            format!("cannot be loaded: its runner did not answer within {} s and was killed", limit.as_secs())
        }
        EngineError::Unavailable(_)
        | EngineError::AlreadyLoaded(_)
        | EngineError::NotLoaded(_)
        | EngineError::InUse(_)
        | EngineError::NoSlot { .. }
        | EngineError::OutOfRange { .. }
        | EngineError::System { .. }
        | EngineError::Busy(_) => format!("cannot be measured: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{ModelId, VariantId};

    #[test]
    fn a_variant_that_cannot_be_loaded_is_told_by_its_name_only() {
        let (variant, model) = (VariantId(u32::MAX), ModelId(u32::MAX));
        let of = |why| Error::Engine { variant: "junk-fp32".to_owned(), why };
        let refused = of(EngineError::Refused { variant, why: "it is no ONNX".to_owned() });
        assert_eq!(refused.to_string(), "\"junk-fp32\" cannot be loaded: it is no ONNX");
        assert!(std::error::Error::source(&refused).is_none(), "or the number is told after all");
        let crashed = of(EngineError::Crashed { model, cause: "signal 9".to_owned() }).to_string();
        assert!(crashed.ends_with("its runner died: signal 9") && !crashed.contains("model-"), "{crashed}");
        let busy = of(EngineError::Busy("loading")).to_string();
        assert!(busy.starts_with("\"junk-fp32\" cannot be measured: "), "{busy}");
    }
}
