//! Answers as nodes give them (JSON in Hugging Face's shape, or tensors as they are), made into the rows of output tensors.
//!
//! Each answer is read as it comes and let go, so that a request of many rows holds numbers and no text.

use super::request::Wanted;
use super::signature::{LABEL, Port, SCORES, Signature};
use crate::errors::ApiError;
use crate::regions::Room;
use crate::suggest::{excerpt, suggest};
use crate::view::TaskView;
use modelless_oip::elements;
use modelless_types::tensor::{packed, strings};
use modelless_types::{DType, Refusal, TaskKind};
use serde::Deserialize;
use std::borrow::Cow;

/// Bytes of the outputs of one request.
pub(crate) const OUTPUT_MAX: usize = 256 << 20;

/// An output of a request.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// With the batch in front, unless the request had none.
    pub(crate) shape: Vec<i64>,
    /// Its elements, as inputs have theirs.
    pub(crate) data: Vec<u8>,
    /// What was asked of its form.
    pub(crate) binary: Option<bool>,
    /// It goes there instead of into the answer.
    pub(crate) room: Option<Room>,
}

/// The outputs of a request while its answers come.
#[derive(Debug)]
pub(crate) struct Collected {
    outputs: Vec<(Output, Form)>,
}

#[derive(Debug)]
enum Form {
    /// As it is.
    Plain,
    /// The best so many classes.
    Classes(usize),
}

/// Whether an answer needs the scores of all labels.
pub(crate) fn scored(kind: TaskKind) -> bool {
    match kind {
        TaskKind::ImageClassification | TaskKind::TextClassification => true,
        TaskKind::FeatureExtraction | TaskKind::Tensor => false,
    }
}

impl Collected {
    /// Room for what is asked for.
    pub(crate) fn of(wanted: Vec<Wanted>, signature: &Signature) -> Result<Self, ApiError> {
        let all =
            || signature.outputs.iter().map(|port| Wanted { name: port.name.clone(), ..Wanted::default() });
        let wanted = if wanted.is_empty() { all().collect() } else { wanted };
        let mut outputs: Vec<(Output, Form)> = Vec::with_capacity(wanted.len());
        for Wanted { name, classes, binary, area: _, room } in wanted {
            let Some(port) = signature.outputs.iter().find(|port| port.name == name) else {
                let known: Vec<&str> = signature.outputs.iter().map(|port| port.name.as_str()).collect();
                let near = suggest(&name, known.iter().copied());
                let (name, known) = (excerpt(&name), known.join(", "));
                return Err(ApiError::malformed(format!(
                    "there is no output {name}{near}; this task gives {known}"
                )));
            };
            if outputs.iter().any(|(known, _)| known.name == name) {
                return Err(ApiError::malformed(format!("the output {name:?} is asked for twice")));
            }
            let form = match classes {
                None | Some(0) => Form::Plain,
                Some(count) => Form::Classes(classes_of(port, count)?),
            };
            let (dtype, shape) = match &form {
                Form::Plain => (port.dtype, port.dims.clone()),
                Form::Classes(count) => (DType::Bytes, vec![i64::try_from(*count).unwrap_or(i64::MAX)]),
            };
            outputs.push((Output { name, dtype, shape, data: Vec::new(), binary, room }, form));
        }
        Ok(Self { outputs })
    }

    /// Adds a row: one answer.
    pub(crate) fn add(&mut self, task: &TaskView, body: &[u8]) -> Result<(), ApiError> {
        match task.task.kind {
            TaskKind::ImageClassification | TaskKind::TextClassification => {
                let scores = scores(task, body)?;
                for (output, form) in &mut self.outputs {
                    match (output.name.as_str(), form) {
                        (_, Form::Classes(count)) => {
                            classes(&scores, &task.task.labels, *count, &mut output.data);
                        }
                        (SCORES, Form::Plain) => {
                            output.data.extend(scores.iter().flat_map(|score| score.to_le_bytes()));
                        }
                        (LABEL, Form::Plain) => {
                            let best = best(&scores, 1).first().and_then(|at| task.task.labels.get(*at));
                            let label = best.map_or("", String::as_str);
                            strings::push(label.as_bytes(), &mut output.data).ok_or_else(unreadable)?;
                        }
                        (_, Form::Plain) => return Err(unreadable()),
                    }
                }
            }
            TaskKind::FeatureExtraction => {
                let text = std::str::from_utf8(body).map_err(|_| unreadable())?;
                for (output, form) in &mut self.outputs {
                    row(output, form, text)?;
                }
            }
            TaskKind::Tensor => {
                let tensors = packed::all(body).ok_or_else(unreadable)?;
                for (output, form) in &mut self.outputs {
                    let mut named = task.signature.outputs.iter().zip(&tensors);
                    let (port, tensor) =
                        named.find(|(port, _)| port.name == output.name).ok_or_else(unreadable)?;
                    match form {
                        Form::Plain => output.data.extend_from_slice(tensor.data),
                        Form::Classes(count) => {
                            let scores = elements::floats(port.dtype, tensor.data);
                            if scores.iter().any(|score| score.is_nan()) {
                                let why = format!(
                                    "the output {:?} has scores that are no numbers, so it has no classes",
                                    port.name
                                );
                                return Err(Refusal::ModelError { why }.into());
                            }
                            classes(&scores, &[], *count, &mut output.data);
                        }
                    }
                }
            }
        }
        if self.outputs.iter().map(|(output, _)| output.data.len()).sum::<usize>() > OUTPUT_MAX {
            let message =
                format!("the answers are larger than {OUTPUT_MAX} bytes together; ask fewer rows at once");
            return Err(ApiError::new(http::StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        Ok(())
    }

    /// All of it, with the batch axis in front unless the request had none.
    pub(crate) fn finish(self, rows: Option<usize>) -> Vec<Output> {
        let batch = rows.map(|rows| i64::try_from(rows).unwrap_or(i64::MAX));
        let mut outputs: Vec<Output> = self.outputs.into_iter().map(|(output, _)| output).collect();
        for output in &mut outputs {
            // A length that was not known beforehand is what came.
            let known: i64 = output.shape.iter().filter(|dim| **dim >= 0).product();
            if let Some(open) = output.shape.iter_mut().find(|dim| **dim < 0) {
                let elements =
                    output.data.len() / output.dtype.size().unwrap_or(1) / rows.unwrap_or(1).max(1);
                *open = i64::try_from(elements).unwrap_or(i64::MAX) / known.max(1);
            }
            if let Some(batch) = batch {
                output.shape.insert(0, batch);
            }
        }
        outputs
    }
}

#[derive(Deserialize)]
struct Scored<'a> {
    #[serde(borrow)]
    label: Cow<'a, str>,
    score: f32,
}

/// What a node said cannot be read, which is not the client's fault.
fn unreadable() -> ApiError {
    tracing::error!("an answer does not have the form of its task; this is a bug");
    ApiError::new(
        http::StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "the answer does not have the form of its task; the log of the server says more",
    )
}

/// A vector as a row.
fn row(output: &mut Output, form: &Form, json: &str) -> Result<(), ApiError> {
    let Form::Classes(count) = form else {
        let limit = OUTPUT_MAX + 1;
        return elements::read(output.dtype, json, &mut output.data, limit)
            .map(|_| ())
            .map_err(|_| unreadable());
    };
    let mut values = Vec::new();
    elements::read(DType::Fp32, json, &mut values, OUTPUT_MAX).map_err(|_| unreadable())?;
    classes(&elements::floats(DType::Fp32, &values), &[], *count, &mut output.data);
    Ok(())
}

/// The scores of all labels in the task's order; what the answer does not name has none.
fn scores(task: &TaskView, body: &[u8]) -> Result<Vec<f32>, ApiError> {
    let scored: Vec<Scored<'_>> = serde_json::from_slice(body).map_err(|_| unreadable())?;
    let mut scores = vec![0.0; task.task.labels.len()];
    for Scored { label, score } in scored {
        if let Some(place) = task.label(&label).and_then(|at| scores.get_mut(usize::from(at))) {
            *place = score;
        }
    }
    Ok(scores)
}

/// Places of the largest values, the largest first; of equal ones the first.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    places.truncate(count);
    places
}

fn classes(values: &[f32], labels: &[String], count: usize, into: &mut Vec<u8>) {
    for place in best(values, count) {
        let score = values[place];
        let class = match labels.get(place) {
            Some(label) => format!("{score:.6}:{place}:{label}"),
            None => format!("{score:.6}:{place}"),
        };
        // Far shorter than a length can say.
        let _ = strings::push(class.as_bytes(), into);
    }
}

/// How many classes an output can be asked as.
fn classes_of(port: &Port, count: u32) -> Result<usize, ApiError> {
    let numbers = matches!(port.dtype, DType::Fp16 | DType::Fp32 | DType::Fp64);
    let (Some(elements), true) = (port.elements(), numbers) else {
        let message = format!("the output {:?} has no scores, so it has no classes", port.name);
        return Err(ApiError::malformed(message));
    };
    Ok(usize::try_from(count).unwrap_or(usize::MAX).min(elements))
}
