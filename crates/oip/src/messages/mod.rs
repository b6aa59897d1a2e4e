//! The protocol's messages, written by hand so that no build needs a compiler for them. Field numbers are those of
//! `open_inference_grpc.proto` and Triton's `grpc_service.proto`; what is not here is skipped when it comes.

mod managing;

pub use managing::*;
use prost::Message;
use prost::bytes::Bytes;
use std::collections::BTreeMap;

/// What says nothing: requests and answers without a field.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// Whether the server lives.
#[derive(Clone, PartialEq, Message)]
pub struct Live {
    /// Live.
    #[prost(bool, tag = "1")]
    pub live: bool,
}

/// Whether the server, or a model, takes requests.
#[derive(Clone, PartialEq, Message)]
pub struct Ready {
    /// Ready.
    #[prost(bool, tag = "1")]
    pub ready: bool,
}

/// Which model is meant.
#[derive(Clone, PartialEq, Message)]
pub struct ModelName {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// What the server is.
#[derive(Clone, PartialEq, Message)]
pub struct ServerMetadata {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Extensions.
    #[prost(string, repeated, tag = "3")]
    pub extensions: Vec<String>,
}

/// What a model takes and gives.
#[derive(Clone, PartialEq, Message)]
pub struct ModelMetadata {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Versions.
    #[prost(string, repeated, tag = "2")]
    pub versions: Vec<String>,
    /// Platform.
    #[prost(string, tag = "3")]
    pub platform: String,
    /// Inputs.
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<TensorMetadata>,
    /// Outputs.
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorMetadata>,
}

/// A tensor as a model declares it.
#[derive(Clone, PartialEq, Message)]
pub struct TensorMetadata {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Datatype.
    #[prost(string, tag = "2")]
    pub datatype: String,
    /// Shape.
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

/// A value of any kind.
#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    /// Which kind, and the value.
    #[prost(oneof = "Choice", tags = "1, 2, 3, 4, 5")]
    pub choice: Option<Choice>,
}

/// Elements by their type, for who does not send them raw.
#[derive(Clone, PartialEq, Message)]
pub struct Contents {
    /// Bools.
    #[prost(bool, repeated, tag = "1")]
    pub bools: Vec<bool>,
    /// Ints.
    #[prost(int32, repeated, tag = "2")]
    pub ints: Vec<i32>,
    /// Longs.
    #[prost(int64, repeated, tag = "3")]
    pub longs: Vec<i64>,
    /// Unsigned.
    #[prost(uint32, repeated, tag = "4")]
    pub unsigned: Vec<u32>,
    /// Unsigned longs.
    #[prost(uint64, repeated, tag = "5")]
    pub unsigned_longs: Vec<u64>,
    /// Floats.
    #[prost(float, repeated, tag = "6")]
    pub floats: Vec<f32>,
    /// Doubles.
    #[prost(double, repeated, tag = "7")]
    pub doubles: Vec<f64>,
    /// Strings.
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub strings: Vec<Bytes>,
}

/// A question.
#[derive(Clone, PartialEq, Message)]
pub struct InferRequest {
    /// Model name.
    #[prost(string, tag = "1")]
    pub model_name: String,
    /// Model version.
    #[prost(string, tag = "2")]
    pub model_version: String,
    /// Id.
    #[prost(string, tag = "3")]
    pub id: String,
    /// Parameters.
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: BTreeMap<String, Parameter>,
    /// Inputs.
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<Tensor>,
    /// Outputs.
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<Wanted>,
    /// Raw input contents.
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub raw_input_contents: Vec<Bytes>,
}

/// An input or an output.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Datatype.
    #[prost(string, tag = "2")]
    pub datatype: String,
    /// Shape.
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    /// Parameters.
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: BTreeMap<String, Parameter>,
    /// Contents.
    #[prost(message, optional, tag = "5")]
    pub contents: Option<Contents>,
}

/// An output that is asked for.
#[derive(Clone, PartialEq, Message)]
pub struct Wanted {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Parameters.
    #[prost(btree_map = "string, message", tag = "2")]
    pub parameters: BTreeMap<String, Parameter>,
}

/// An answer.
#[derive(Clone, PartialEq, Message)]
pub struct InferResponse {
    /// Model name.
    #[prost(string, tag = "1")]
    pub model_name: String,
    /// Model version.
    #[prost(string, tag = "2")]
    pub model_version: String,
    /// Id.
    #[prost(string, tag = "3")]
    pub id: String,
    /// Parameters.
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: BTreeMap<String, Parameter>,
    /// Outputs.
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<Tensor>,
    /// Raw output contents.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub raw_output_contents: Vec<Bytes>,
}

/// An answer in a stream, or why there is none.
#[derive(Clone, PartialEq, Message)]
pub struct StreamResponse {
    /// Error message.
    #[prost(string, tag = "1")]
    pub error_message: String,
    /// Infer response.
    #[prost(message, optional, tag = "2")]
    pub infer_response: Option<InferResponse>,
}

/// The kinds of a parameter.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Choice {
    /// Bool.
    #[prost(bool, tag = "1")]
    Bool(bool),
    /// Int.
    #[prost(int64, tag = "2")]
    Int(i64),
    /// Text.
    #[prost(string, tag = "3")]
    Text(String),
    /// Double.
    #[prost(double, tag = "4")]
    Double(f64),
    /// Unsigned.
    #[prost(uint64, tag = "5")]
    Unsigned(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stay_what_they_are() {
        let request = InferRequest {
            model_name: "m".to_owned(),
            inputs: vec![Tensor {
                name: "x".to_owned(),
                datatype: "INT8".to_owned(),
                shape: vec![1, 2],
                ..Tensor::default()
            }],
            raw_input_contents: vec![Bytes::from_static(&[7, 8])],
            ..InferRequest::default()
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
        assert_eq!(response.parameters["p"].choice, Some(Choice::Bool(true)));
    }

    #[test]
    fn configurations_carry_their_numbers() {
        let config = ModelConfig { backend: "b".to_owned(), max_batch_size: 3, ..ModelConfig::default() };
        assert_eq!(config.encode_to_vec(), b"\x20\x03\x8a\x01\x01b");
    }
}
