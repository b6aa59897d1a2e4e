//! The protocol over HTTP, tensors in JSON or in Triton's binary form.

use super::http::{Client, Response};
use super::peer::{Access, Described, Peer, short};
use super::tensors::{self, Answered};
use crate::runner::Declared;
use modelless_types::{DType, TensorSpec};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Write as _;

/// A model of a server.
pub(super) struct Rest {
    client: Client,
    path: String,
    /// Whether tensors cross in binary form. `None`: if the server says that it knows it.
    binary: Option<bool>,
}

impl Rest {
    pub(super) fn new(access: Access, model: &str, version: Option<&str>, binary: Option<bool>) -> Self {
        Self { client: Client::new(access), path: path(model, version), binary }
    }

    fn knows_binary(&mut self) -> Result<bool, String> {
        if let Some(known) = self.binary {
            return Ok(known);
        }
        let response = self.client.send("GET", "/v2", &[], b"")?;
        let about: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let extensions = about["extensions"].as_array();
        let known = extensions.is_some_and(|all| all.iter().any(|name| name == "binary_tensor_data"));
        self.binary = Some(known);
        Ok(known)
    }

    /// What a server says besides its status, cut short.
    fn said(&self, response: &Response) -> String {
        let parsed: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let error = parsed["error"].as_str();
        let error = error.map_or_else(|| String::from_utf8_lossy(&response.body).into_owned(), str::to_owned);
        let access = self.client.access();
        let hint = if response.status == 401 { access.hint() } else { "" };
        format!("status {}: {}{hint}", response.status, short(&access.hidden(&error)))
    }
}

impl Peer for Rest {
    fn ready(&mut self) -> Result<(), String> {
        let response = self.client.send("GET", &format!("{}/ready", self.path), &[], b"")?;
        if response.status == 200 { Ok(()) } else { Err(self.said(&response)) }
    }

    fn describe(&mut self) -> Result<Described, String> {
        let response = self.client.send("GET", &self.path, &[], b"")?;
        if response.status != 200 {
            return Err(format!("the server does not describe its model: {}", self.said(&response)));
        }
        let described: Value = serde_json::from_slice(&response.body).map_err(|error| {
            format!("the server describes its model in something that is no JSON: {error}")
        })?;
        let inputs = declared(&described["inputs"], "inputs");
        Ok(Described { inputs, outputs: declared(&described["outputs"], "outputs") })
    }

    fn takes(&mut self, inputs: &[Declared]) -> Result<(), String> {
        match inputs.iter().find(|input| input.dtype == DType::Fp16) {
            Some(half) if !self.knows_binary()? => Err(format!(
                "input `{}` is FP16, which has no form in JSON, and the server does not say that it knows the binary \
                 one; if it does, say `\"binary\": true`",
                half.name
            )),
            _ => self.knows_binary().map(|_| ()),
        }
    }

    fn lost(&self) -> bool {
        self.client.access().lost.take()
    }

    fn another(&self) -> Box<dyn Peer> {
        let client = Client::new(self.client.access().clone());
        Box::new(Self { client, path: self.path.clone(), binary: self.binary })
    }

    fn infer(
        &mut self,
        inputs: &[(&TensorSpec, Cow<'_, [u8]>)],
        rows: u32,
        names: &[String],
    ) -> Result<Vec<Answered>, String> {
        let binary = self.knows_binary()?;
        let (mut body, tail) = tensors::request(inputs, rows, binary)?;
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if binary {
            headers = vec![
                ("content-type", "application/octet-stream".to_owned()),
                ("inference-header-content-length", body.len().to_string()),
            ];
            body.extend_from_slice(&tail);
        }
        let response = self.client.send("POST", &format!("{}/infer", self.path), &headers, &body)?;
        if response.status != 200 {
            // What stands before a server says these of one that is down or cannot take more.
            self.client.access().lost.set(matches!(response.status, 502..=504));
            return Err(format!("the server refused: {}", self.said(&response)));
        }
        let head = response.header("inference-header-content-length").and_then(|head| head.parse().ok());
        tensors::answer(&response.body, head, names)
    }
}

fn path(model: &str, version: Option<&str>) -> String {
    let mut path = format!("/v2/models/{}", escaped(model));
    if let Some(version) = version {
        let _ = write!(path, "/versions/{}", escaped(version));
    }
    path
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Tensors as a server describes them: names, types and shapes with the batch first and -1 for what is open.
fn declared(described: &Value, what: &str) -> Result<Vec<Declared>, String> {
    let one = |tensor: &Value| {
        let name =
            tensor["name"].as_str().ok_or_else(|| format!("one of the server's {what} has no name"))?;
        let datatype = tensor["datatype"].as_str().unwrap_or_default();
        let dtype = DType::parse(datatype)
            .ok_or_else(|| format!("`{name}`: elements of type {datatype:?} are not supported"))?;
        let shape = tensor["shape"].as_array().ok_or_else(|| format!("`{name}` has no shape"))?;
        let axes = shape.iter().map(|axis| axis.as_u64().and_then(|axis| u32::try_from(axis).ok())).collect();
        Ok(Declared { name: name.to_owned(), dtype, axes })
    };
    described.as_array().into_iter().flatten().map(one).collect()
}
