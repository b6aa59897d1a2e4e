//! How a task's input becomes a model's tensors, and its tensors the task's output.
//!
//! A query never depends on what a variant's input looks like; this crate stands between. Its work has two
//! halves, cut where the design cuts them:
//!
//! * [`Preparation::decode`] runs **once per query and preparation** (the settings that matter to decoding,
//!   hashed to a [`PreparationId`]): bytes become a [`Decoded`] picture, text or tensors. No size, no normalisation.
//! * [`Adapter::prepare`] runs **once per variant that is really used**: it resizes, crops, normalises and lays
//!   out straight into the row of a batch, which is shared memory.
//!
//! [`Adapter::finish`] turns the rows that come out into an [`Output`], which writes itself as JSON.
//! [`AdapterSpec`] is the notation in which a model says what it needs; [`Adapter`] is that notation bound to
//! the model's real tensors and to its task, so that nothing is looked up or checked per query that could have
//! been before.
//!
//! The rules for pictures (alpha, EXIF rotation, grey, 16 bits, damaged files) stand at [`picture`], those for
//! tensors at [`tensor`], those for texts at [`text`]; `docs/inputs.md` has both for people.
//!
//! What is deliberately not here: any I/O, threads or clocks; fetching of URLs; choosing anything. Everything
//! is bounded by [`Limits`] before it is allocated, and bad input is an [`InputError`], never a panic.
#![warn(missing_docs)]

mod adapter;
mod base64_input;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod limits;
mod matching;
mod output;
pub mod picture;
mod preparation;
mod scores;
mod spec;
pub mod tensor;
pub mod text;

pub use adapter::Adapter;
pub use base64_input::decode_base64_input;
pub use error::{InputError, InputErrorKind, OutputError, PrepareError, SpecError, TensorFault};
pub use limits::Limits;
pub use output::{NamedTensor, Output, OutputParams, Scored};
pub use picture::{Picture, Scratch};
pub use preparation::{Body, Decoded, Preparation, PreparationId};
pub use scores::argmax;
pub use spec::{
    Activation, AdapterSpec, Channels, Colour, Filter, ImageSpec, InputType, Layout, Mode, PerChannel,
    Resize, TensorsSpec,
};
pub use tensor::Tensors;
pub use text::{Tokenizer, Tokens};
