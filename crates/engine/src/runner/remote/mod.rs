//! A server that speaks the Open Inference Protocol as an engine: "loading" asks whether the model is ready and what its
//! tensors look like, a batch is one request.
//!
//! It runs in a runner process like every library: the executor keeps no socket to a foreign server, and one that sends
//! nonsense or nothing harms its own variants only.

#[cfg(feature = "grpc")]
mod grpc;
mod http;
mod line;
mod peer;
mod rest;
mod tensors;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls_absent.rs"]
mod tls;

use super::backend::{Backend, Inputs, LoadRequest, Model, Needs, Program, Results};
use super::specs::Declared;
use http::{Scheme, Server};
use modelless_types::{DType, TensorSpec};
use peer::{Access, Peer};
use rest::Rest;
use serde::Deserialize;
use std::borrow::Cow;
use std::cell::Cell;
use std::fs::File;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use tls::Trust;

/// How long a request may take where the artefact says nothing: less than the least limit of a batch, so that the server
/// is blamed and not the runner.
const USUAL_LIMIT_MS: u64 = 4_000;
/// A few lines.
const MAX_ARTEFACT: usize = 64 << 10;

/// The artefact: a JSON file of a few lines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Artefact {
    /// `http://HOST:PORT`, maybe with a path before `/v2`, or `grpc://HOST:PORT`; `https` and `grpcs` with TLS.
    url: String,
    /// The server's name of the model.
    model: String,
    /// The server's version; its newest where nothing is said.
    #[serde(default)]
    version: Option<String>,
    /// How long one request may take.
    #[serde(default)]
    timeout_ms: Option<u64>,
    /// Whether tensors cross in Triton's binary form; left out, if the server says that it knows it. gRPC has one form.
    #[serde(default)]
    binary: Option<bool>,
    /// The tensors of one item, for servers that do not describe their models.
    #[serde(default)]
    inputs: Vec<TensorSpec>,
    #[serde(default)]
    outputs: Vec<TensorSpec>,
}

impl Artefact {
    #[cfg_attr(
        feature = "grpc",
        expect(clippy::unnecessary_wraps, reason = "without the feature it can fail")
    )]
    fn peer(&self, access: Access) -> Result<Box<dyn Peer>, String> {
        let version = self.version.as_deref();
        match access.server.scheme {
            Scheme::Http => Ok(Box::new(Rest::new(access, &self.model, version, self.binary))),
            #[cfg(feature = "grpc")]
            Scheme::Grpc => Ok(Box::new(grpc::Grpc::new(access, &self.model, version))),
            #[cfg(not(feature = "grpc"))]
            Scheme::Grpc => {
                Err("this program was built without gRPC; the server's HTTP port will do".to_owned())
            }
        }
    }
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

/// Which server an artefact is on, as `HOST:PORT`, for whoever starts a runner for it or knows what it costs. None where
/// it is no artefact; loading says why.
pub fn authority(artefact: &File) -> Option<String> {
    server(artefact).map(|server| server.authority)
}

/// The same, and whether it is believed to be that one only if it shows a certificate.
pub(crate) fn certified(artefact: &File) -> Option<(String, bool)> {
    server(artefact).map(|server| (server.authority, server.encrypted))
}

fn server(artefact: &File) -> Option<Server> {
    let mut bytes = vec![0; MAX_ARTEFACT];
    let count = artefact.read_at(&mut bytes, 0).ok()?;
    let artefact: Artefact = serde_json::from_slice(&bytes[..count]).ok()?;
    Server::parse(&artefact.url).ok()
}

/// The same of a URL as it stands in an artefact.
pub fn authority_of(url: &str) -> Result<String, String> {
    Server::parse(url).map(|server| server.authority)
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
        let limit = artefact.timeout_ms.unwrap_or(USUAL_LIMIT_MS);
        if limit == 0 {
            return Err("`timeout_ms` is 0; it must be at least 1".to_owned());
        }
        let trust = server.encrypted.then(|| Trust::new(&server, request.roots.unwrap_or_default()));
        let access = Access {
            trust: trust.transpose()?,
            server,
            addresses: self.addresses.clone()?,
            limit: Duration::from_millis(limit),
            token: request.token.cloned(),
            lost: Cell::new(false),
        };
        let mut peer = artefact.peer(access)?;
        peer.ready().map_err(|why| format!("the server's model `{}` is not ready: {why}", artefact.model))?;
        let described = peer.describe()?;
        let inputs = tensors_of(&artefact.inputs, described.inputs, "inputs")?;
        let outputs = tensors_of(&artefact.outputs, described.outputs, "outputs")?;
        let names: Vec<String> = outputs.iter().map(|output| output.name.clone()).collect();
        peer.takes(&inputs)?;
        let program =
            |_| Box::new(RemoteProgram { peer: peer.another(), names: names.clone() }) as Box<dyn Program>;
        let programs: Vec<_> = (0..request.lanes).map(program).collect();
        let device = format!("remote:{}", self.authority);
        let first_runs = programs.len();
        Ok(Model { programs, first_runs, inputs, outputs: Some(outputs), device })
    }
}

/// What the artefact says, or else the server.
fn tensors_of(
    said: &[TensorSpec],
    described: Result<Vec<Declared>, String>,
    what: &str,
) -> Result<Vec<Declared>, String> {
    if !said.is_empty() {
        return Ok(said.iter().map(Declared::open).collect());
    }
    let described = described?;
    if described.is_empty() {
        return Err(format!("the server does not say its model's {what}; say `{what}` in the artefact"));
    }
    Ok(described)
}

/// One lane's connection.
struct RemoteProgram {
    peer: Box<dyn Peer>,
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
        self.peer.lost();
        let outputs = self.peer.infer(&given, inputs.rows(), &self.names).inspect_err(|_| {
            if self.peer.lost() {
                results.unreachable();
            }
        })?;
        results.end();
        for output in outputs {
            results.push(output.dtype, output.axes.iter().copied(), &output.bytes);
        }
        Ok(())
    }
}
