//! The handful of the protocol's messages that are spoken, written by hand so that no build needs a compiler for them.
//! Field numbers are those of `open_inference_grpc.proto`; what is not here is skipped when it comes.

use prost::Message;
use prost::bytes::Bytes;

/// Which model is meant, for readiness and for its description.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelName {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelReady {
    #[prost(bool, tag = "1")]
    pub(super) ready: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelMetadata {
    #[prost(message, repeated, tag = "4")]
    pub(super) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<TensorMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferRequest {
    #[prost(string, tag = "1")]
    pub(super) model_name: String,
    #[prost(string, tag = "2")]
    pub(super) model_version: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) inputs: Vec<Tensor>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(super) raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferResponse {
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<Tensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(super) raw_output_contents: Vec<Bytes>,
}

/// An input or an output.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
    #[prost(message, optional, tag = "5")]
    pub(super) contents: Option<Contents>,
}

/// Elements by their type, for who does not send them raw.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub(super) bools: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub(super) ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub(super) longs: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) unsigned: Vec<u32>,
    #[prost(float, repeated, tag = "6")]
    pub(super) floats: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub(super) doubles: Vec<f64>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub(super) strings: Vec<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stay_what_they_are() {
        let request = InferRequest {
            model_name: "m".to_owned(),
            model_version: String::new(),
            inputs: vec![Tensor {
                name: "x".to_owned(),
                datatype: "INT8".to_owned(),
                shape: vec![1, 2],
                contents: None,
            }],
            raw_input_contents: vec![Bytes::from_static(&[7, 8])],
        };
        let expected = b"\x0a\x01m\x2a\x0d\x0a\x01x\x12\x04INT8\x1a\x02\x01\x02\x3a\x02\x07\x08";
        assert_eq!(request.encode_to_vec(), expected);
    }

    #[test]
    fn what_is_not_known_is_skipped() {
        // A name, an id and parameters before the one output; a number of a field that does not exist behind it.
        let bytes =
            b"\x0a\x01m\x1a\x02id\x22\x07\x0a\x01p\x12\x02\x08\x01\x2a\x0a\x0a\x01y\x12\x05BYTES\xf8\x07\x01";
        let response = InferResponse::decode(&bytes[..]).unwrap();
        assert_eq!((response.outputs.len(), response.outputs[0].name.as_str()), (1, "y"));
    }
}
