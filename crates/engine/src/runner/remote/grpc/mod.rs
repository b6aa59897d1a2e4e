//! The protocol over gRPC: HTTP/2 by `h2`, one call at a time on one kept connection, every wait and every size bounded.
//!
//! Tensors go raw, which every type has a form in, and come back raw or by type, as the server likes.

mod drive;

use super::http::{MAX_BODY, Server, nonsense};
use super::line::Line;
use super::peer::{Access, Described, Peer, short};
use super::tensors::{Answered, whole};
use crate::clock;
use crate::runner::Declared;
use drive::{Socket, Watch};
use h2::client::{Connection, SendRequest};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, StatusCode};
use modelless_oip::contents::to_bytes;
use modelless_oip::messages::{
    InferRequest, InferResponse, ModelMetadata, ModelName, Ready, Tensor, TensorMetadata,
};
use modelless_types::{DType, TensorSpec};
use prost::Message;
use prost::bytes::{BufMut, Bytes, BytesMut};
use std::borrow::Cow;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Whether a message is compressed, and how long it is.
const PREFIX: usize = 5;
/// What a server may send before it is told that it was read.
const WINDOW: u32 = 8 << 20;
const UNAUTHENTICATED: u16 = 16;
const UNAVAILABLE: u16 = 14;
const DEADLINE_EXCEEDED: u16 = 4;

/// A model of a server.
pub(super) struct Grpc {
    client: Client,
    model: ModelName,
}

impl Grpc {
    pub(super) fn new(access: Access, model: &str, version: Option<&str>) -> Self {
        let version = version.unwrap_or_default().to_owned();
        let model = ModelName { name: model.to_owned(), version };
        Self { client: Client { access, live: None }, model }
    }
}

impl Peer for Grpc {
    fn ready(&mut self) -> Result<(), String> {
        let reply: Ready = self.client.call("ModelReady", &self.model)?;
        if reply.ready { Ok(()) } else { Err("the server says that it is not".to_owned()) }
    }

    fn describe(&mut self) -> Result<Described, String> {
        let about: ModelMetadata = self.client.call("ModelMetadata", &self.model)?;
        let all = |tensors: Vec<TensorMetadata>| {
            let one = |tensor: TensorMetadata| {
                let axes = tensor.shape.iter().map(|axis| u32::try_from(*axis).ok()).collect();
                Ok(Declared { dtype: dtype(&tensor.name, &tensor.datatype)?, name: tensor.name, axes })
            };
            tensors.into_iter().map(one).collect::<Result<Vec<_>, String>>()
        };
        Ok(Described { inputs: all(about.inputs), outputs: all(about.outputs) })
    }

    fn lost(&self) -> bool {
        self.client.access.lost.take()
    }

    fn another(&self) -> Box<dyn Peer> {
        let client = Client { access: self.client.access.clone(), live: None };
        Box::new(Self { client, model: self.model.clone() })
    }

    fn infer(
        &mut self,
        inputs: &[(&TensorSpec, Cow<'_, [u8]>)],
        rows: u32,
        names: &[String],
    ) -> Result<Vec<Answered>, String> {
        let tensor = |(spec, _): &(&TensorSpec, Cow<'_, [u8]>)| Tensor {
            name: spec.name.clone(),
            datatype: spec.dtype.name().to_owned(),
            shape: std::iter::once(rows).chain(spec.shape.iter().copied()).map(i64::from).collect(),
            ..Tensor::default()
        };
        let request = InferRequest {
            model_name: self.model.name.clone(),
            model_version: self.model.version.clone(),
            inputs: inputs.iter().map(tensor).collect(),
            raw_input_contents: inputs.iter().map(|(_, bytes)| Bytes::copy_from_slice(bytes)).collect(),
            ..InferRequest::default()
        };
        let response = self.client.call("ModelInfer", &request).map_err(|why| match why {
            Failed::Said(said) => format!("the server refused: {said}"),
            Failed::Else(why) => why,
        })?;
        answered(response, names)
    }
}

fn dtype(name: &str, datatype: &str) -> Result<DType, String> {
    DType::parse(datatype).ok_or_else(|| format!("`{name}`: elements of type {datatype:?} are not supported"))
}

/// An answer's tensors, in the order of `names`.
fn answered(response: InferResponse, names: &[String]) -> Result<Vec<Answered>, String> {
    let InferResponse { outputs, raw_output_contents, .. } = response;
    if !raw_output_contents.is_empty() && raw_output_contents.len() != outputs.len() {
        let (raw, all) = (raw_output_contents.len(), outputs.len());
        return Err(format!("its answer has {all} outputs, and the bytes of {raw}"));
    }
    let mut raw = raw_output_contents.into_iter();
    let mut found = Vec::new();
    for output in outputs {
        let wrong = |why: String| format!("output `{}` of its answer: {why}", output.name);
        let dtype = dtype(&output.name, &output.datatype)?;
        let axes = output.shape.iter().map(|axis| u32::try_from(*axis).ok()).collect::<Option<Vec<u32>>>();
        let axes = axes.ok_or_else(|| wrong("it has no shape".to_owned()))?;
        let bytes = match (raw.next(), &output.contents) {
            (Some(bytes), _) => bytes.to_vec(),
            (None, Some(contents)) => to_bytes(dtype, contents).map_err(wrong)?,
            (None, None) => Vec::new(),
        };
        if !whole(dtype, &axes, &bytes) {
            return Err(wrong(format!("shape {axes:?} and {} bytes do not go together", bytes.len())));
        }
        found.push((output.name, Answered { dtype, axes, bytes }));
    }
    super::tensors::in_order(found, names)
}

/// A connection that is made when it is needed.
struct Client {
    access: Access,
    live: Option<Live>,
}

struct Live {
    sender: SendRequest<Bytes>,
    connection: Connection<Socket, Bytes>,
    watch: Watch,
}

/// Why a call gave nothing.
enum Failed {
    /// The server said no.
    Said(String),
    Else(String),
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::Else(why)
    }
}

impl From<Failed> for String {
    fn from((Failed::Said(why) | Failed::Else(why)): Failed) -> Self {
        why
    }
}

/// How a call ended that did not fail on its way.
struct Reply {
    http: StatusCode,
    /// `grpc-status` and `grpc-message`.
    status: Option<u16>,
    message: String,
    body: BytesMut,
}

impl Client {
    /// Makes a call and waits for its answer. What fails on a connection kept from before is tried once more on a new one:
    /// servers close what is idle.
    fn call<T: Message + Default>(&mut self, method: &str, request: &impl Message) -> Result<T, Failed> {
        let until = clock::now() + self.access.limit;
        let mut framed = BytesMut::with_capacity(PREFIX + request.encoded_len());
        framed.put_u8(0);
        let length = u32::try_from(request.encoded_len());
        framed.put_u32(length.map_err(|_| "the batch is too large for one message".to_owned())?);
        request.encode(&mut framed).map_err(|error| error.to_string())?;
        let framed = framed.freeze();
        let kept = self.live.is_some();
        let first = self.attempt(method, framed.clone(), until);
        let result = match first {
            Err(error) if kept && error.kind() != io::ErrorKind::TimedOut => {
                self.attempt(method, framed, until)
            }
            other => other,
        };
        let reply = result.map_err(|error| self.access.unreachable(&error))?;
        match (reply.http, reply.status) {
            (StatusCode::OK, Some(0)) => {}
            (StatusCode::OK, Some(status)) => {
                self.access.lost.set(matches!(status, DEADLINE_EXCEEDED | UNAVAILABLE));
                let hint = if status == UNAUTHENTICATED { self.access.hint() } else { "" };
                let said = self.access.hidden(&reply.message);
                return Err(Failed::Said(format!("gRPC status {status}: {}{hint}", short(&said))));
            }
            (http, status) => {
                let what =
                    if status.is_none() { "its answer has no gRPC status" } else { "not what gRPC answers" };
                return Err(Failed::Said(format!("HTTP status {}, {what}", http.as_u16())));
            }
        }
        let body = reply.body.freeze();
        let (prefix, message) = body
            .split_first_chunk::<PREFIX>()
            .ok_or_else(|| "its answer is shorter than an empty one".to_owned())?;
        let [compressed, length @ ..] = *prefix;
        if compressed != 0 || usize::try_from(u32::from_be_bytes(length)) != Ok(message.len()) {
            let why = "its answer is compressed, which was not asked for, or not one message";
            return Err(why.to_owned().into());
        }
        T::decode(body.slice(PREFIX..)).map_err(|error| format!("its answer is no message: {error}").into())
    }

    fn attempt(&mut self, method: &str, framed: Bytes, until: Instant) -> io::Result<Reply> {
        let mut live = match self.live.take() {
            Some(live) => live,
            None => open(&self.access, until)?,
        };
        let Access { server: Server { authority, encrypted, .. }, .. } = &self.access;
        let scheme = if *encrypted { "https" } else { "http" };
        let uri = format!("{scheme}://{authority}/inference.GRPCInferenceService/{method}");
        let mut head = Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", format!("{}m", milliseconds(until)));
        if let Some(token) = &self.access.token {
            head = head.header("authorization", token.header());
        }
        let head = head.body(()).map_err(io::Error::other)?;
        let Live { sender, connection, watch } = &mut live;
        let mut exchange = Box::pin(exchange(sender, head, framed));
        let mut closed = None;
        let reply = drive::wait(
            watch,
            until,
            poll_fn(|context| {
                // First what came, then what is waited for, which finds out whether that was it.
                if closed.is_none()
                    && let Poll::Ready(end) = std::pin::Pin::new(&mut *connection).poll(context)
                {
                    closed = Some(end);
                }
                match exchange.as_mut().poll(context) {
                    Poll::Pending if closed.is_some() => {
                        Poll::Ready(Err(closed.take().and_then(Result::err)))
                    }
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(done) => Poll::Ready(done.map_err(Some)),
                }
            }),
        )?;
        drop(exchange);
        let reply = reply.map_err(|error| error.map_or_else(hung_up, broken))?;
        if closed.is_none() {
            self.live = Some(live);
        }
        Ok(reply)
    }
}

/// The protocol has at most eight digits for it.
fn milliseconds(until: Instant) -> u128 {
    until.saturating_duration_since(clock::now()).max(Duration::from_millis(1)).as_millis().min(99_999_999)
}

fn open(access: &Access, until: Instant) -> io::Result<Live> {
    let (socket, watch) = drive::split(Line::open(access, until)?)?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).enable_push(false);
    let opening = drive::wait(&watch, until, builder.handshake(socket))?;
    let (sender, connection) = opening.map_err(broken)?;
    Ok(Live { sender, connection, watch })
}

async fn exchange(
    sender: &mut SendRequest<Bytes>,
    head: Request<()>,
    framed: Bytes,
) -> Result<Reply, h2::Error> {
    poll_fn(|context| sender.poll_ready(context)).await?;
    let (response, mut stream) = sender.send_request(head, false)?;
    stream.send_data(framed, true)?;
    let (parts, mut body) = response.await?.into_parts();
    let bytes = read(&mut body).await?;
    let trailers = body.trailers().await?;
    // A call that fails at once has its status where others have their head.
    let last = trailers.as_ref().unwrap_or(&parts.headers);
    Ok(Reply {
        http: parts.status,
        status: text(last, "grpc-status").and_then(|status| status.parse().ok()),
        message: unescaped(text(last, "grpc-message").unwrap_or_default()),
        body: bytes,
    })
}

async fn read(body: &mut RecvStream) -> Result<BytesMut, h2::Error> {
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        if bytes.len() + piece.len() > MAX_BODY {
            return Err(Reason::ENHANCE_YOUR_CALM.into());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Messages have bytes that a header cannot have as `%XX`.
fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| std::str::from_utf8(after.get(..2)?).ok()).flatten();
        if let Some(byte) = code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(hung_up);
    }
    nonsense(&format!("it broke the connection: {error}"))
}

fn hung_up() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up in the middle of an answer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_oip::messages::Contents;
    use std::net::SocketAddr;

    fn output(name: &str, datatype: &str, shape: &[i64], contents: Option<Contents>) -> Tensor {
        Tensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.to_vec(),
            contents,
            ..Tensor::default()
        }
    }

    #[test]
    fn answers_are_found_by_name_raw_or_by_type() {
        let names = ["a".to_owned(), "b".to_owned()];
        let raw = InferResponse {
            outputs: vec![output("b", "UINT8", &[1], None), output("a", "BYTES", &[2], None)],
            raw_output_contents: vec![Bytes::from_static(&[9]), Bytes::from_static(b"\x01\0\0\0x\0\0\0\0")],
            ..InferResponse::default()
        };
        let found = answered(raw, &names).unwrap();
        assert_eq!((&found[0].bytes[..], &found[1].bytes[..]), (&b"\x01\0\0\0x\0\0\0\0"[..], &[9][..]));
        let contents = Contents {
            ints: vec![-1, 127],
            strings: vec![Bytes::from_static(b"x"), Bytes::new()],
            ..Contents::default()
        };
        let typed = InferResponse {
            outputs: vec![
                output("a", "INT8", &[2], Some(contents.clone())),
                output("b", "BYTES", &[1, 2], Some(contents)),
            ],
            ..InferResponse::default()
        };
        let found = answered(typed, &names).unwrap();
        assert_eq!(
            (&found[0].bytes[..], &found[1].bytes[..]),
            (&[255, 127][..], &b"\x01\0\0\0x\0\0\0\0"[..])
        );
    }

    #[test]
    fn answers_that_do_not_add_up_are_refused() {
        let names = ["a".to_owned()];
        let ints = |numbers: &[i32]| Some(Contents { ints: numbers.to_vec(), ..Contents::default() });
        for (tensor, raw) in [
            (output("a", "FP32", &[2], None), vec![Bytes::from_static(&[0; 4])]),
            (output("a", "FP32", &[-1], None), vec![Bytes::from_static(&[0; 4])]),
            (output("a", "FP32", &[1], None), vec![Bytes::from_static(&[0; 4]); 2]),
            (output("a", "FP32", &[1], None), Vec::new()),
            (output("a", "COMPLEX", &[1], None), vec![Bytes::new()]),
            (output("b", "INT8", &[1], ints(&[1])), Vec::new()),
            (output("a", "INT8", &[1], ints(&[128])), Vec::new()),
            (output("a", "FP16", &[1], ints(&[1])), Vec::new()),
        ] {
            let response =
                InferResponse { outputs: vec![tensor], raw_output_contents: raw, ..InferResponse::default() };
            assert!(answered(response.clone(), &names).is_err(), "{response:?}");
        }
    }

    #[test]
    fn what_a_server_says_is_read_as_it_was_meant() {
        assert_eq!(unescaped("not%20ready: 100%"), "not ready: 100%");
        assert_eq!(unescaped("%C3%BC%zz%"), "ü%zz%");
    }

    /// How a server answers a call: with this status and message, after so much of a body.
    #[derive(Clone)]
    enum Script {
        /// A message of one byte field and padding of so many bytes, which is skipped.
        Ready(usize),
        Status(&'static str, &'static str),
        /// Closes the connection without a word.
        HangsUp,
        Silent,
    }

    /// A server that answers its calls one after another as it is told, and what it was sent.
    fn serving(scripts: Vec<Script>) -> (SocketAddr, std::sync::mpsc::Receiver<(HeaderMap, usize)>) {
        let (sender, receiver) = std::sync::mpsc::sync_channel(16);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let mut scripts = scripts.into_iter();
                let mut answers = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let (head, mut body) = request.into_parts();
                        let Some(script) = scripts.next() else { return };
                        if matches!(script, Script::HangsUp) {
                            break;
                        }
                        let sender = sender.clone();
                        answers.spawn(async move {
                            let length = read(&mut body).await.unwrap().len();
                            sender.send((head.headers, length)).unwrap();
                            match script {
                                Script::Ready(padding) => {
                                    let mut message = BytesMut::from(&[8, 1][..]);
                                    message.put_u8(0x7a); // field 15, which nobody knows
                                    prost::encoding::encode_varint(padding as u64, &mut message);
                                    message.put_bytes(0, padding);
                                    let mut framed = BytesMut::from(&[0][..]);
                                    framed.put_u32(u32::try_from(message.len()).unwrap());
                                    framed.extend_from_slice(&message);
                                    let head = http::Response::builder().body(()).unwrap();
                                    let mut stream = respond.send_response(head, false).unwrap();
                                    stream.send_data(framed.freeze(), false).unwrap();
                                    let mut trailers = HeaderMap::new();
                                    trailers.insert("grpc-status", "0".parse().unwrap());
                                    stream.send_trailers(trailers).unwrap();
                                }
                                Script::Status(status, message) => {
                                    let head = http::Response::builder()
                                        .header("grpc-status", status)
                                        .header("grpc-message", message);
                                    respond.send_response(head.body(()).unwrap(), true).unwrap();
                                }
                                Script::HangsUp => {}
                                Script::Silent => std::future::pending().await,
                            }
                        });
                    }
                }
            });
        });
        (address, receiver)
    }

    fn asking(address: SocketAddr, model: &str) -> Grpc {
        let server = Server::parse(&format!("grpc://{address}")).unwrap();
        let access = Access::test(server, vec![address], Duration::from_secs(20));
        let token = Some(crate::control::Secret::test("s3cret"));
        Grpc::new(Access { token, ..access }, model, None)
    }

    /// Asks three times, both ways beyond every window.
    fn calls_share_a_connection(ask: impl FnOnce(SocketAddr, &str) -> Grpc) {
        let (address, asked) = serving(vec![Script::Ready(0), Script::Ready(20 << 20), Script::Ready(1)]);
        let mut peer = ask(address, &"m".repeat(3 << 20));
        for _ in 0..3 {
            peer.ready().unwrap();
        }
        for _ in 0..3 {
            let (headers, length) = asked.recv().unwrap();
            assert!(length > 3 << 20);
            assert_eq!(headers["authorization"], "Bearer s3cret");
            assert_eq!(
                (&headers["te"], &headers["content-type"]),
                (&"trailers".parse().unwrap(), &"application/grpc".parse().unwrap())
            );
            assert!(headers["grpc-timeout"].to_str().unwrap().ends_with('m'));
        }
    }

    #[test]
    fn calls_share_a_connection_whatever_their_size() {
        calls_share_a_connection(asking);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn calls_share_an_encrypted_connection_whatever_their_size() {
        use super::super::tls::Trust;
        use modelless_testkit::certificates::Authority;
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path()).unwrap();
        authority.sign("127.0.0.1").unwrap();
        calls_share_a_connection(|address, model| {
            let front = modelless_testkit::front::before(address, &authority, "127.0.0.1", &["h2"]).unwrap();
            let server = Server::parse(&format!("grpcs://{front}")).unwrap();
            let roots = std::fs::read(folder.path().join("ca.pem")).unwrap();
            let trust = Some(Trust::new(&server, &roots).unwrap());
            let mut peer = asking(front, model);
            peer.client.access = Access { server, trust, ..peer.client.access };
            peer
        });
    }

    #[test]
    fn what_a_server_refuses_is_told_without_the_token() {
        let (address, _asked) =
            serving(vec![Script::Status("16", "who%20is%20s3cret%3F"), Script::Status("5", "no model")]);
        let mut peer = asking(address, "m");
        let said = peer.ready().unwrap_err();
        assert!(said.starts_with("gRPC status 16: who is ***? (the node's token file"), "{said}");
        assert_eq!(peer.ready().unwrap_err(), "gRPC status 5: no model");
    }

    #[test]
    fn a_connection_that_was_closed_meanwhile_is_made_again_and_silence_has_an_end() {
        let (address, _asked) = serving(vec![
            Script::Ready(0),
            Script::HangsUp,
            Script::Ready(0),
            Script::Silent,
            Script::Ready(0),
        ]);
        let mut peer = asking(address, "m");
        peer.ready().unwrap();
        peer.ready().unwrap();
        peer.client.access.limit = Duration::from_millis(50);
        let said = peer.ready().unwrap_err();
        assert!(said.contains(&format!("grpc://{address} did not answer within 50 ms")), "{said}");
        peer.client.access.limit = Duration::from_secs(20);
        peer.ready().unwrap();
    }

    #[test]
    fn a_server_of_something_else_is_no_grpc() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map(Result::unwrap) {
                io::Write::write_all(&mut &stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            }
        });
        let said = asking(address, "m").ready().unwrap_err();
        assert!(said.contains("cannot be reached"), "{said}");
    }
}
