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
    #[error("{variant:?}: {source}")]
    Engine {
        /// The variant's name.
        variant: String,
        /// Why.
        source: EngineError,
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
        "nothing says how accurate {0:?} is: name a labelled set to measure it with, or declare `accuracy` for the \
         variant in its manifest"
    )]
    NoAccuracy(String),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] modelless_store::Error),
    /// The work was cut short.
    #[error("measuring was cut short: {0}")]
    Cancelled(String),
}
