//! The rows of a request, each a query of its own.
//!
//! A row is cut out of what came, not copied, where the task takes it as it lies there: one tensor, or one text whose answer needs no
//! parameters. A picture whose answer needs some goes as base64, since raw inputs have none.

use super::request::{Extra, Request, Tensor};
use super::signature::{Port, Signature};
use super::{ROWS_MAX, TENSORS_MAX};
use crate::errors::ApiError;
use crate::suggest::{excerpt, suggest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes as Buffer, BytesMut};
use modelless_types::tensor::strings;
use modelless_types::{DType, Task, TaskKind};
use modelless_wire::Input;

/// All rows.
#[derive(Debug)]
pub(crate) struct Rows {
    /// How many.
    pub(crate) count: usize,
    /// The request had no batch axis, so the answer has none.
    pub(crate) single: bool,
    columns: Vec<Column>,
    kind: TaskKind,
    parameters: Option<Buffer>,
}

/// An input, cut into rows.
#[derive(Debug)]
struct Column {
    data: Buffer,
    cells: Cells,
    from_json: bool,
    bare: bool,
}

#[derive(Debug)]
enum Cells {
    /// Each has so many bytes.
    Even(usize),
    /// Where each begins, and the end of the last.
    At(Vec<usize>),
}

impl Column {
    fn row(&self, row: usize) -> Buffer {
        match &self.cells {
            Cells::Even(size) => self.data.slice(row * size..(row + 1) * size),
            Cells::At(at) => self.data.slice(at[row]..at[row + 1]),
        }
    }

    /// The one string of a row, without its length.
    fn string(&self, row: usize) -> Buffer {
        let cell = self.row(row);
        if self.bare {
            return cell;
        }
        cell.slice(strings::LENGTH.min(cell.len())..)
    }
}

impl Rows {
    /// Checks the inputs against the task's, and cuts them up.
    pub(crate) fn of(
        request: Request,
        task: &Task,
        signature: &Signature,
        extra: &Extra,
        scored: bool,
    ) -> Result<Self, ApiError> {
        if request.inputs.len() > TENSORS_MAX {
            let message =
                format!("the request has {} inputs; at most {TENSORS_MAX} are taken", request.inputs.len());
            return Err(ApiError::malformed(message));
        }
        let mut found: Vec<Option<Tensor>> = signature.inputs.iter().map(|_| None).collect();
        for tensor in request.inputs {
            let at = signature.inputs.iter().position(|port| port.name == tensor.name).ok_or_else(|| {
                let known: Vec<&str> = signature.inputs.iter().map(|port| port.name.as_str()).collect();
                let near = suggest(&tensor.name, known.iter().copied());
                let (name, known) = (excerpt(&tensor.name), known.join(", "));
                ApiError::malformed(format!("there is no input {name}{near}; this task takes {known}"))
            })?;
            if found[at].replace(tensor).is_some() {
                let name = &signature.inputs[at].name;
                return Err(ApiError::malformed(format!("the input {name:?} is given twice")));
            }
        }
        let mut batch: Option<Option<usize>> = None;
        let mut columns = Vec::with_capacity(found.len());
        for (port, tensor) in signature.inputs.iter().zip(found) {
            let name = &port.name;
            let tensor =
                tensor.ok_or_else(|| ApiError::malformed(format!("the input {name:?} is missing")))?;
            let (rows, column) = column(port, tensor)?;
            if *batch.get_or_insert(rows) != rows {
                let message =
                    "the inputs have different numbers of rows: the first axis of each must be the same";
                return Err(ApiError::malformed(message));
            }
            columns.push(column);
        }
        let batch = batch.ok_or_else(|| ApiError::malformed("the request has no `inputs`"))?;
        let mut output = extra.output.clone();
        if scored {
            // Every label has a place in the answer.
            output.insert("top_k".to_owned(), task.labels.len().max(1).into());
        }
        let parameters = (!output.is_empty()).then(|| serde_json::Value::Object(output).to_string().into());
        Ok(Self { count: batch.unwrap_or(1), single: batch.is_none(), columns, kind: task.kind, parameters })
    }

    /// A row as nodes take it.
    pub(crate) fn input(&self, row: usize) -> Result<Input, ApiError> {
        let first = &self.columns[0];
        if self.kind == TaskKind::Tensor {
            return Ok(Input::Raw(match self.columns.as_slice() {
                [only] => only.row(row),
                several => {
                    let mut all = BytesMut::new();
                    for column in several {
                        all.extend_from_slice(&column.row(row));
                    }
                    all.freeze()
                }
            }));
        }
        let string = first.string(row);
        let picture = self.kind == TaskKind::ImageClassification;
        let inputs = match (&self.parameters, picture) {
            (None, false) => return Ok(Input::Raw(string)),
            (None, true) if !first.from_json => return Ok(Input::Raw(string)),
            // It is base64 already.
            (_, true) if first.from_json => quoted(&string)?,
            (_, true) => {
                let mut quoted = String::with_capacity(string.len() / 3 * 4 + 8);
                quoted.push('"');
                STANDARD.encode_string(&string, &mut quoted);
                quoted.push('"');
                quoted.into()
            }
            (Some(_), false) => quoted(&string)?,
        };
        Ok(Input::Json { inputs, parameters: self.parameters.clone() })
    }
}

/// A text as JSON.
fn quoted(text: &[u8]) -> Result<Buffer, ApiError> {
    let text = std::str::from_utf8(text).map_err(|_| ApiError::malformed("the text is not UTF-8"))?;
    let quoted = serde_json::to_vec(text).expect("a string always becomes JSON; this is a bug");
    Ok(quoted.into())
}

/// An input cut into rows, and how many they are; `None` where it has no batch axis.
fn column(port: &Port, tensor: Tensor) -> Result<(Option<usize>, Column), ApiError> {
    let Tensor { name, dtype, shape, data, from_json, bare, area: _ } = tensor;
    let wrong = |why: String| ApiError::malformed(format!("the input {name:?}: {why}"));
    if dtype != port.dtype {
        return Err(wrong(format!("its datatype is {}; expected {}", dtype.name(), port.dtype.name())));
    }
    // A string of its own needs no axis beside the batch, and may have one.
    let strings_alone = port.dims == [1] && dtype == DType::Bytes && shape.len() == 1;
    let rows = match shape.as_slice() {
        [rows] if strings_alone => Some(*rows),
        all if all == port.dims => None,
        [rows, rest @ ..] if rest == port.dims => Some(*rows),
        _ => {
            return Err(wrong(format!("its shape is {shape:?}; expected {:?}", port.shape())));
        }
    };
    let count = match rows {
        None => 1,
        Some(rows) => usize::try_from(rows)
            .ok()
            .filter(|rows| (1..=ROWS_MAX).contains(rows))
            .ok_or_else(|| wrong(format!("its first axis is {rows}; a request has 1 to {ROWS_MAX} rows")))?,
    };
    let elements = port.elements().unwrap_or(1);
    let cells = match dtype.size() {
        Some(size) => {
            let row = elements.checked_mul(size).filter(|row| row.checked_mul(count) == Some(data.len()));
            Cells::Even(row.ok_or_else(|| {
                wrong(format!("it has {} bytes, which do not go with its shape {shape:?}", data.len()))
            })?)
        }
        None if bare => Cells::At(vec![0, data.len()]),
        None => Cells::At(
            starts(&data, count, elements)
                .ok_or_else(|| wrong(format!("its strings do not go with its shape {shape:?}")))?,
        ),
    };
    Ok((rows.map(|_| count), Column { data, cells, from_json, bare }))
}

/// Where each row of so many strings begins, and the end of the last, which is the end of all.
fn starts(data: &[u8], rows: usize, elements: usize) -> Option<Vec<usize>> {
    // Each string has a length at least: what is not there is not made room for.
    rows.checked_mul(elements)?.checked_mul(strings::LENGTH).filter(|least| *least <= data.len())?;
    let mut at = Vec::with_capacity(rows + 1);
    let mut rest = data;
    at.push(0);
    for _ in 0..rows {
        rest = strings::take(rest, elements)?.1;
        at.push(data.len() - rest.len());
    }
    rest.is_empty().then_some(at)
}
