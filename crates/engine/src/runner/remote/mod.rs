//! A server that speaks the Open Inference Protocol as an engine: "loading" asks whether the model is ready and what its
//! tensors look like, a batch is one request.
//!
//! It runs in a runner process like every library: the executor keeps no socket to a foreign server, and one that sends
//! nonsense or nothing harms its own variants only.

mod http;
mod tensors;

use super::backend::{Backend, Inputs, LoadRequest, Model, Needs, Program, Results};
use super::specs::Declared;
use http::{Client, Response, Server};
use modelless_types::{DType, TensorSpec};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How long a request may take where the artefact says nothing: less than the least limit of a batch, so that the server
/// is blamed and not the runner.
const USUAL_LIMIT_MS: u64 = 4_000;
/// A few lines.
const MAX_ARTEFACT: usize = 64 << 10;
/// What a reply to the executor has room for, and more than people read.
const MAX_SAID: usize = 300;

/// The artefact: a JSON file of a few lines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Artefact {
    /// `http://HOST:PORT`, maybe with a path before `/v2`.
    url: String,
    /// The server's name of the model.
    model: String,
    /// The server's version; its newest where nothing is said.
    #[serde(default)]
    version: Option<String>,
    /// How long one request may take.
    #[serde(default)]
    timeout_ms: Option<u64>,
    /// Whether tensors cross in Triton's binary form; left out, if the server says that it knows it.
    #[serde(default)]
    binary: Option<bool>,
    /// The tensors of one item, for servers that do not describe their models.
    #[serde(default)]
    inputs: Vec<TensorSpec>,
    #[serde(default)]
    outputs: Vec<TensorSpec>,
}

/// A runner reaches one server, which it was started for: nothing else is open to it once it is confined.
struct Remote {
    /// Host and port.
    authority: String,
    addresses: Result<Vec<SocketAddr>, String>,
}

/// The server stands in place of a library; nothing where it is only to be seen whether runners start.
#[expect(clippy::unnecessary_wraps, reason = "the signature of every backend")]
pub(super) fn open(authority: &Path) -> Result<Box<dyn Backend>, String> {
    let authority = authority.to_string_lossy().into_owned();
    let found = authority.to_socket_addrs().map(Iterator::collect);
    let addresses = found.map_err(|error| format!("the address of {authority} cannot be found: {error}"));
    Ok(Box::new(Remote { authority, addresses }))
}

/// Which server an artefact is on, for whoever starts a runner for it. None where it is no artefact; loading says why.
pub(crate) fn authority(artefact: &File) -> Option<String> {
    let mut bytes = vec![0; MAX_ARTEFACT];
    let count = artefact.read_at(&mut bytes, 0).ok()?;
    let artefact: Artefact = serde_json::from_slice(&bytes[..count]).ok()?;
    Server::parse(&artefact.url).ok().map(|server| server.authority)
}

impl Backend for Remote {
    fn needs(&self) -> Needs {
        let connect = self.addresses.as_ref().ok().and_then(|all| Some(all.first()?.port()));
        Needs { connect, ..Needs::default() }
    }

    fn start(&mut self) -> Result<String, String> {
        Ok("Open Inference Protocol 2".to_owned())
    }

    fn load(&mut self, request: &LoadRequest<'_>) -> Result<Model, String> {
        let artefact: Artefact = serde_json::from_slice(request.artefact).map_err(|error| {
            format!("it must be a JSON file with `url` and `model` (and maybe `version`, `timeout_ms`, `binary`): {error}")
        })?;
        let server = Server::parse(&artefact.url)?;
        if server.authority != self.authority {
            return Err(format!(
                "its server is {}, but this model's runner reaches {} only; variants on another server need a model of \
                 their own",
                server.authority, self.authority
            ));
        }
        let addresses = self.addresses.clone()?;
        let limit = artefact.timeout_ms.unwrap_or(USUAL_LIMIT_MS);
        if limit == 0 {
            return Err("`timeout_ms` is 0; it must be at least 1".to_owned());
        }
        let limit = Duration::from_millis(limit);
        let mut client = Client::new(server.clone(), addresses.clone(), limit);
        let path = path(&artefact.model, artefact.version.as_deref());
        let ready = client.send("GET", &format!("{path}/ready"), &[], b"")?;
        if ready.status != 200 {
            return Err(format!("the server's model `{}` is not ready: {}", artefact.model, said(&ready)));
        }
        let described = describe(&mut client, &path)?;
        let open = |specs: &[TensorSpec]| specs.iter().map(Declared::open).collect::<Vec<_>>();
        let inputs = match artefact.inputs.as_slice() {
            [] => declared(&described["inputs"], "inputs")?,
            inputs => open(inputs),
        };
        let outputs = match artefact.outputs.as_slice() {
            [] => declared(&described["outputs"], "outputs")?,
            outputs => open(outputs),
        };
        let binary = match artefact.binary {
            Some(binary) => binary,
            None => knows_binary(&mut client)?,
        };
        if !binary && let Some(half) = inputs.iter().find(|input| input.dtype == DType::Fp16) {
            return Err(format!(
                "input `{}` is FP16, which has no form in JSON, and the server does not say that it knows the binary \
                 one; if it does, say `\"binary\": true`",
                half.name
            ));
        }
        let names: Vec<String> = outputs.iter().map(|output| output.name.clone()).collect();
        let program = |_| {
            Box::new(RemoteProgram {
                client: Client::new(server.clone(), addresses.clone(), limit),
                path: format!("{path}/infer"),
                binary,
                names: names.clone(),
            }) as Box<dyn Program>
        };
        let programs = (0..request.lanes).map(program).collect();
        Ok(Model { programs, inputs, outputs: Some(outputs), device: format!("remote:{}", server.authority) })
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

fn describe(client: &mut Client, path: &str) -> Result<Value, String> {
    let response = client.send("GET", path, &[], b"")?;
    if response.status != 200 {
        return Err(format!("the server does not describe its model: {}", said(&response)));
    }
    serde_json::from_slice(&response.body)
        .map_err(|error| format!("the server describes its model in something that is no JSON: {error}"))
}

fn knows_binary(client: &mut Client) -> Result<bool, String> {
    let response = client.send("GET", "/v2", &[], b"")?;
    let about: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let extensions = about["extensions"].as_array();
    Ok(extensions.is_some_and(|all| all.iter().any(|name| name == "binary_tensor_data")))
}

/// Tensors as a server describes them: names, types and shapes with the batch first and -1 for what is open.
fn declared(described: &Value, what: &str) -> Result<Vec<Declared>, String> {
    let all = described.as_array().filter(|all| !all.is_empty());
    let all = all
        .ok_or_else(|| format!("the server does not say its model's {what}; say `{what}` in the artefact"))?;
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
    all.iter().map(one).collect()
}

/// What a server says besides its status, cut short.
fn said(response: &Response) -> String {
    let parsed: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let error = parsed["error"].as_str();
    let error = error.map_or_else(|| String::from_utf8_lossy(&response.body).into_owned(), str::to_owned);
    let error = &error[..error.floor_char_boundary(MAX_SAID)];
    format!("status {}: {}", response.status, error.trim())
}

/// One lane's connection.
struct RemoteProgram {
    client: Client,
    path: String,
    binary: bool,
    names: Vec<String>,
}

impl Program for RemoteProgram {
    fn run(&mut self, inputs: Inputs<'_>, results: &mut Results<'_>) -> Result<(), String> {
        let given = (0..inputs.len()).map(|ix| {
            let spec = inputs.get(ix).0;
            let strings = spec.dtype == DType::Bytes;
            let bytes = if strings { inputs.strings(ix)?.into() } else { inputs.bytes(ix).into() };
            Ok((spec, bytes))
        });
        let given: Vec<(&TensorSpec, Cow<'_, [u8]>)> = given.collect::<Result<_, String>>()?;
        // Writing and reading the request is part of what this engine takes.
        results.begin();
        let (mut body, tail) = tensors::request(&given, inputs.rows(), self.binary)?;
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if self.binary {
            headers = vec![
                ("content-type", "application/octet-stream".to_owned()),
                ("inference-header-content-length", body.len().to_string()),
            ];
            body.extend_from_slice(&tail);
        }
        let response = self.client.send("POST", &self.path, &headers, &body)?;
        if response.status != 200 {
            return Err(format!("the server refused: {}", said(&response)));
        }
        let head = response.header("inference-header-content-length").and_then(|head| head.parse().ok());
        let outputs = tensors::answer(&response.body, head, &self.names)?;
        results.end();
        for output in outputs {
            results.push(output.dtype, output.axes.iter().copied(), &output.bytes);
        }
        Ok(())
    }
}
