//! An answer in the form of the native routes: JSON, whatever the node gave.

use crate::view::TaskView;
use bytes::Bytes as Buffer;
use modelless_oip::elements;
use modelless_types::tensor::packed;
use modelless_types::{DType, Refusal, TaskKind};

/// Tensors that are larger are written beside what else is to be answered meanwhile.
const LARGE: usize = 64 << 10;

/// What is JSON already is given as it is.
pub(crate) async fn json(task: &TaskView, body: &Buffer) -> Result<Buffer, Refusal> {
    if task.task.kind != TaskKind::Tensor {
        return Ok(body.clone());
    }
    let outputs = &task.signature.outputs;
    if body.len() < LARGE {
        return tensors(outputs.iter().map(|port| (port.name.as_str(), port.dtype)), body);
    }
    let (outputs, body) = (outputs.clone(), body.clone());
    let writing = move || tensors(outputs.iter().map(|port| (port.name.as_str(), port.dtype)), &body);
    tokio::task::spawn_blocking(writing).await.unwrap_or_else(|error| {
        Err(Refusal::ModelError { why: format!("writing its answer failed inside the server: {error}") })
    })
}

/// `{"outputs": {name: {"shape", "datatype", "data"}}}`.
pub(crate) fn tensors<'a>(
    outputs: impl Iterator<Item = (&'a str, DType)>,
    body: &[u8],
) -> Result<Buffer, Refusal> {
    let unreadable = || {
        tracing::error!("an answer does not have the form of its task; this is a bug");
        Refusal::ModelError { why: "the answer does not have the form of its task".to_owned() }
    };
    let mut tensors = packed::all(body).ok_or_else(unreadable)?.into_iter();
    let mut out = Vec::with_capacity(body.len() * 2 + 64);
    out.extend_from_slice(b"{\"outputs\":{");
    for (at, (name, dtype)) in outputs.enumerate() {
        let tensor = tensors.next().ok_or_else(unreadable)?;
        if at > 0 {
            out.push(b',');
        }
        put(name, &mut out);
        out.extend_from_slice(b":{\"shape\":");
        put(&tensor.shape().collect::<Vec<u32>>(), &mut out);
        out.extend_from_slice(b",\"datatype\":");
        put(dtype.name(), &mut out);
        out.extend_from_slice(b",\"data\":");
        elements::write(dtype, tensor.data, &mut out).map_err(|why| Refusal::ModelError {
            why: format!("the output {name:?}: {why}, which JSON cannot say; the Open Inference Protocol gives it as bytes"),
        })?;
        out.push(b'}');
    }
    out.extend_from_slice(b"}}");
    Ok(out.into())
}

fn put<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("names and numbers always become JSON in memory; this is a bug");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_told_by_name_and_what_json_cannot_say_is_named() {
        let outputs = [("y", DType::Fp32), ("z \"", DType::Int32)];
        let mut body = Vec::new();
        let floats: Vec<u8> = [0.1_f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        packed::push(&[2], &floats, &mut body);
        packed::push(&[1, 1], &7_i32.to_le_bytes(), &mut body);
        assert_eq!(
            tensors(outputs.into_iter(), &body).unwrap(),
            r#"{"outputs":{"y":{"shape":[2],"datatype":"FP32","data":[0.1,-2.0]},"z \"":{"shape":[1,1],"datatype":"INT32","data":[7]}}}"#
        );
        let mut odd = Vec::new();
        packed::push(&[1], &f32::NAN.to_le_bytes(), &mut odd);
        let why = tensors(outputs.into_iter().take(1), &odd).unwrap_err().to_string();
        assert!(why.contains("\"y\"") && why.contains("element 0 is not finite"), "{why}");
        assert!(tensors(outputs.into_iter(), &odd).is_err(), "one is missing");
    }
}
