//! What can go wrong, told to people: what was found, what was expected.

use modelless_types::DType;
use std::fmt;
use thiserror::Error;

/// Why an adapter cannot be used: for whoever registers a model.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SpecError {
    /// It is not the notation.
    #[error("the adapter cannot be read: {0}")]
    Notation(String),
    /// One setting has a value that makes no sense.
    #[error("adapter setting `{setting}` is {found}; expected {expected}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: String,
    },
    /// The adapter is of another kind than the task.
    #[error("this is an adapter for `{adapter}`, but the task `{task}` is of kind `{kind}`")]
    Kind {
        /// The adapter's kind.
        adapter: &'static str,
        /// The task's name.
        task: String,
        /// The task's kind.
        kind: &'static str,
    },
    /// The model lacks a tensor, or it is not clear which one is meant.
    #[error("{wanted}; the model has {}", names(.present))]
    NoTensor {
        /// What was looked for.
        wanted: String,
        /// What there is.
        present: Vec<String>,
    },
    /// A tensor is not what the adapter makes or reads.
    #[error("the model's {side} `{name}` is {found}; expected {expected}")]
    Tensor {
        /// `input` or `output`.
        side: &'static str,
        /// Its name in the model.
        name: String,
        /// Its type and shape.
        found: String,
        /// What would fit.
        expected: String,
    },
    /// The tokenizer's file.
    #[error("the tokenizer cannot be used: {why}; expected a Hugging Face `tokenizer.json`")]
    Tokenizer {
        /// What is wrong with it.
        why: String,
    },
    /// The task itself cannot be adapted to.
    #[error("the task `{task}` cannot be served: {why}")]
    Task {
        /// Its name.
        task: String,
        /// What is wrong with it.
        why: String,
    },
}

fn names(list: &[String]) -> String {
    if list.is_empty() {
        return "none".to_owned();
    }
    list.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Which kind of answer an input error deserves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputErrorKind {
    /// It could never be read as what the task takes (HTTP 400).
    Malformed,
    /// It is larger than allowed (HTTP 413).
    TooLarge,
    /// It is a kind of file that the task does not take (HTTP 415).
    UnsupportedMedia,
}

/// Why an input was refused: for whoever sent it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum InputError {
    /// Not a JPEG or PNG.
    #[error("the input is {found}; expected a JPEG or PNG picture")]
    UnsupportedMedia {
        /// What it looks like.
        found: String,
    },
    /// Too many bytes.
    #[error("the input has {bytes} bytes; at most {limit} are taken")]
    TooManyBytes {
        /// How many there are, as far as known.
        bytes: usize,
        /// How many are taken.
        limit: usize,
    },
    /// A text with nothing in it.
    #[error("the text is empty; a model makes nothing sensible of that")]
    EmptyText,
    /// A text that is none.
    #[error("the input is no UTF-8 text: its byte {at} does not belong there")]
    BadText {
        /// Where that was noticed.
        at: usize,
    },
    /// The tokenizer failed on a text.
    #[error("the text could not be cut into tokens: {why}")]
    Tokenizer {
        /// What it said.
        why: String,
    },
    /// Too many pixels.
    #[error(
        "the picture is {width} x {height}; at most {pixels} pixels and {side} on a side are taken: scale it down"
    )]
    TooManyPixels {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// How many pixels are taken.
        pixels: u64,
        /// How many on one side.
        side: u32,
    },
    /// Decoding would need too much memory.
    #[error("decoding the picture needs {needs} bytes of memory; at most {limit} are given")]
    TooMuchMemory {
        /// What it needs.
        needs: u64,
        /// What there is.
        limit: u64,
    },
    /// Too many passes.
    #[error("the JPEG has more than {limit} scans; save it with fewer")]
    TooManyScans {
        /// How many are taken.
        limit: u32,
    },
    /// The file stops before its end.
    #[error("the {format} is cut off: {missing} is missing")]
    Truncated {
        /// `JPEG` or `PNG`.
        format: &'static str,
        /// What should have come.
        missing: &'static str,
    },
    /// The file is damaged.
    #[error("the {format} cannot be decoded: {why}")]
    BadPicture {
        /// `JPEG` or `PNG`.
        format: &'static str,
        /// What the decoder said.
        why: String,
    },
    /// A picture in JSON that is not base64.
    #[error("the picture is not base64: {why}")]
    BadBase64 {
        /// What is wrong with it.
        why: String,
    },
    /// Not JSON, or not the JSON that was asked for.
    #[error("the inputs cannot be read: {why}")]
    BadJson {
        /// What is wrong with it.
        why: String,
    },
    /// A tensor is missing, unknown or given twice.
    #[error("{what}; this task takes {}", names(.expected))]
    Names {
        /// What is wrong.
        what: String,
        /// The task's inputs.
        expected: Vec<String>,
    },
    /// One tensor is wrong.
    #[error("input `{name}`: {fault}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        fault: TensorFault,
    },
    /// Raw tensor bytes of a wrong length.
    #[error("the raw input has {got} bytes; this task takes {}: {layout}", raw_words(*.expected, *.strings))]
    RawLength {
        /// How many came.
        got: usize,
        /// How many should have; with strings, the fewest that could be.
        expected: usize,
        /// Some of them are strings, which say how long they are.
        strings: bool,
        /// What they are.
        layout: String,
    },
}

impl InputError {
    /// Which kind of answer it deserves.
    pub fn kind(&self) -> InputErrorKind {
        match self {
            Self::UnsupportedMedia { .. } => InputErrorKind::UnsupportedMedia,
            Self::TooManyBytes { .. }
            | Self::TooManyPixels { .. }
            | Self::TooMuchMemory { .. }
            | Self::TooManyScans { .. }
            | Self::Tensor { fault: TensorFault::TooLong { .. }, .. } => InputErrorKind::TooLarge,
            Self::EmptyText
            | Self::BadText { .. }
            | Self::Tokenizer { .. }
            | Self::Truncated { .. }
            | Self::BadPicture { .. }
            | Self::BadBase64 { .. }
            | Self::BadJson { .. }
            | Self::Names { .. }
            | Self::Tensor { .. }
            | Self::RawLength { .. } => InputErrorKind::Malformed,
        }
    }
}

fn raw_words(expected: usize, strings: bool) -> String {
    if strings {
        format!("at least {expected}, a length of four bytes before each string and nothing behind the last")
    } else {
        expected.to_string()
    }
}

/// What is wrong with one tensor.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TensorFault {
    /// An element that is no number (or boolean) of the type.
    #[error("element {index} is {found}; expected {}", dtype_words(*.dtype))]
    Element {
        /// Its position, row by row.
        index: usize,
        /// What stands there.
        found: String,
        /// The declared type.
        dtype: DType,
    },
    /// Lists of different lengths or depths side by side.
    #[error("it is ragged at element {index}: every list of one level must have the same length")]
    Ragged {
        /// Where it was noticed.
        index: usize,
    },
    /// More levels of lists than axes.
    #[error("its lists are nested more than {limit} deep")]
    TooDeep {
        /// How deep they may be.
        limit: usize,
    },
    /// Too few or too many elements.
    #[error("it has {got} elements; expected {expected}, which is the shape {}", Shape(.shape))]
    Count {
        /// How many came.
        got: usize,
        /// How many should have.
        expected: usize,
        /// The declared shape of one item.
        shape: Vec<u32>,
    },
    /// The right number of elements in a wrong shape.
    #[error("its shape is {}; expected {} (or a flat list, or a leading 1 for the batch)", Shape(.got), Shape(.expected))]
    Shape {
        /// What came.
        got: Vec<u64>,
        /// The declared shape of one item.
        expected: Vec<u32>,
    },
    /// A `datatype` that is not the declared one.
    #[error("its datatype is `{got}`; expected {expected}", expected = .expected.name())]
    Datatype {
        /// What came.
        got: String,
        /// What was declared.
        expected: DType,
    },
    /// Strings that are longer together than an input may be.
    #[error("its strings make the input larger than {limit} bytes, which is the most it may have")]
    TooLong {
        /// The most bytes.
        limit: usize,
    },
    /// Neither a list nor an object with `data`.
    #[error("expected a list, or an object with `data` and optionally `shape` and `datatype`: {why}")]
    Form {
        /// What is wrong with it.
        why: String,
    },
}

struct Shape<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Shape<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, axis) in self.0.iter().enumerate() {
            write!(f, "{}{axis}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

fn dtype_words(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "true, false, 0 or 1 (BOOL)",
        DType::Uint8 => "a whole number from 0 to 255 (UINT8)",
        DType::Int8 => "a whole number from -128 to 127 (INT8)",
        DType::Int32 => "a whole number of 32 bits (INT32)",
        DType::Int64 => "a whole number of 64 bits (INT64)",
        DType::Fp16 => "a number no larger than 65504 (FP16)",
        DType::Fp32 => "a number no larger than 3.4e38 (FP32)",
        DType::Fp64 => "a number no larger than 1.7e308 (FP64)",
        DType::Bytes => "a string (BYTES)",
    }
}

/// Why a decoded input could not be written into a batch. All of these but two ([`PrepareError::TooLong`] and
/// [`PrepareError::TooManyTokens`]) are bugs of the caller, but even a bug must not end a process that serves others.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PrepareError {
    /// The input was decoded for another preparation.
    #[error("the input was decoded as {found}, but this model needs {needs}")]
    Preparation {
        /// As what it was decoded.
        found: &'static str,
        /// What is needed.
        needs: &'static str,
    },
    /// The model has no such input.
    #[error("input {index} was asked for; the model has {inputs}")]
    NoInput {
        /// Its position.
        index: usize,
        /// How many there are.
        inputs: usize,
    },
    /// The row has a wrong length.
    #[error("the row has {got} bytes; expected {expected}")]
    RowLength {
        /// Its length.
        got: usize,
        /// What it should be.
        expected: usize,
    },
    /// Its strings do not fit into the room that a variant has for them.
    #[error(
        "the strings of `{input}` take {got} bytes, four for the length of each included, and what could answer takes \
         {room}"
    )]
    TooLong {
        /// The model's input.
        input: String,
        /// What they take.
        got: usize,
        /// What there is.
        room: usize,
    },
    /// The text is longer than the model takes, which is not to be cut.
    #[error("the text has {got} tokens, and the model that could answer takes {most}; send a shorter one")]
    TooManyTokens {
        /// How many it has, special ones included.
        got: usize,
        /// How many it may have.
        most: usize,
    },
    /// The picture could not be resized.
    #[error("the picture could not be resized: {0}")]
    Resize(String),
}

/// Why an output could not be made into an answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum OutputError {
    /// The model answered with something that is no finite number.
    #[error("the model's output `{output}` is not a finite number at element {index}")]
    NotFinite {
        /// The output.
        output: String,
        /// The element.
        index: usize,
    },
    /// The model answered with a string that is no text.
    #[error(
        "the model's output `{output}` is no UTF-8 text at element {index}, and JSON can say nothing else"
    )]
    NotText {
        /// The output.
        output: String,
        /// The element.
        index: usize,
    },
    /// Not the number of outputs that the model has.
    #[error("{got} outputs came from the model; expected {expected}")]
    Count {
        /// How many came.
        got: usize,
        /// How many should have.
        expected: usize,
    },
    /// A row of a wrong length.
    #[error("the model's output `{output}` has {got} bytes for one item; expected {expected}")]
    RowLength {
        /// The output.
        output: String,
        /// Its length.
        got: usize,
        /// What it should be.
        expected: usize,
    },
    /// A parameter of the query makes no sense here.
    #[error("parameter `{name}` is {found}; expected {expected}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// What a vector is made of is missing: the text, or an adapter that makes one.
    #[error("no vector can be made of this output")]
    NoVector,
    /// The model has no output that classes could be read from.
    #[error("this adapter has no output whose largest element names a class")]
    NoClasses,
}
