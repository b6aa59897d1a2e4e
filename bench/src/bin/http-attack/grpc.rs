//! Floods over gRPC: as many calls at once as a few connections carry, each made again as soon as it is answered. Of what can be answered, of what
//! nobody can read, and of what becomes too large when it is unpacked.
//!
//! The one message there is to send is written by hand: its protocol's crate is for those who speak all of it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout_at};

use super::{PAUSE, Seen};

/// Calls at once on a connection: most of what a gateway lets there be.
const CALLS: usize = 100;
/// An answer is small; what is read of it makes room for the next at once.
const WINDOW: u32 = 1 << 20;

/// What a bomb becomes: more than a gateway takes by itself, with the MiB that a message may have beside its tensors.
const BOMB: usize = (33 << 20) + 1;

/// Where it goes, and what the calls say, in turn.
pub(crate) struct Flood {
    address: SocketAddr,
    key: String,
    messages: Vec<Bytes>,
    /// How they are packed.
    packed: &'static str,
}

impl Flood {
    /// `ModelInfer` of a model with one input of these bytes.
    pub(crate) fn new(address: SocketAddr, key: &str, model: &str, input: &Input<'_>, bytes: &[u8]) -> Self {
        let request = [field(1, model.as_bytes()), field(5, &input.tensor()), field(7, bytes)].concat();
        Self { address, key: key.to_owned(), messages: vec![framed(0, &request)], packed: "identity" }
    }

    /// No message among them: no fields, fields that end too early, and heads that say what is not so.
    pub(crate) fn malformed(address: SocketAddr, key: &str) -> Self {
        let (none, early) = ([0xff; 9], [field(1, b"model"), vec![0x2a, 0x7f]].concat());
        let short = framed(0, &early).slice(..8);
        let messages = vec![framed(0, &none), framed(0, &early), framed(1, &early), framed(2, &early), short];
        Self { address, key: key.to_owned(), messages, packed: "identity" }
    }

    /// Small, and too large once it is unpacked.
    pub(crate) fn bombs(address: SocketAddr, key: &str) -> Result<Self> {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        bomb.write_all(&vec![0; BOMB])?;
        Ok(Self { address, key: key.to_owned(), messages: vec![framed(1, &bomb.finish()?)], packed: "gzip" })
    }

    /// On one connection, which is made again when it is lost.
    pub(crate) fn run(&self, end: Instant) -> Result<Seen> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut seen = Seen::new();
        runtime.block_on(async {
            while Instant::now() < end {
                if self.connected(end, &mut seen).await.is_err() {
                    *seen.entry("closed".to_owned()).or_default() += 1;
                    sleep(PAUSE).await;
                }
            }
        });
        Ok(seen)
    }

    async fn connected(&self, end: Instant, seen: &mut Seen) -> Result<()> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).enable_push(false);
        let (sender, connection) = builder.handshake::<_, Bytes>(stream).await?;
        let mut connection = std::pin::pin!(connection);
        let mut calls = JoinSet::new();
        let mut messages = self.messages.iter().cycle();
        let mut call = || self.call(&sender, messages.next().context("nothing to say")?);
        for _ in 0..CALLS {
            calls.spawn(call()?);
        }
        loop {
            let ended = tokio::select! {
                lost = &mut connection => return lost.context("the connection ended"),
                ended = timeout_at(end.into(), calls.join_next()) => ended,
            };
            let Ok(Some(ended)) = ended else {
                *seen.entry("unanswered at the end".to_owned()).or_default() += u64::try_from(calls.len())?;
                return Ok(());
            };
            let what = ended?.unwrap_or_else(|_| "reset".to_owned());
            *seen.entry(what).or_default() += 1;
            calls.spawn(call()?);
        }
    }

    fn call(
        &self,
        sender: &SendRequest<Bytes>,
        message: &Bytes,
    ) -> Result<impl Future<Output = Result<String, h2::Error>> + Send + 'static> {
        let head =
            Request::post(format!("http://{}/inference.GRPCInferenceService/ModelInfer", self.address))
                .header("content-type", "application/grpc")
                .header("grpc-encoding", self.packed)
                .header("te", "trailers")
                .header("api-key", &self.key)
                .body(())?;
        Ok(call(sender.clone(), head, message.clone()))
    }
}

/// The one input of a model.
pub(crate) struct Input<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: &'a str,
    pub(crate) shape: Vec<u64>,
}

impl Input<'_> {
    fn tensor(&self) -> Vec<u8> {
        let shape: Vec<u8> = self.shape.iter().flat_map(|axis| varint(*axis)).collect();
        [field(1, self.name.as_bytes()), field(2, self.dtype.as_bytes()), field(3, &shape)].concat()
    }
}

/// With its head: whether it is packed, and how long it is.
fn framed(packed: u8, message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[packed][..], &length, message].concat().into()
}

/// `grpc 0` and so on, of a refusal with its name, or the status of HTTP where there is none of gRPC.
async fn call(sender: SendRequest<Bytes>, head: Request<()>, message: Bytes) -> Result<String, h2::Error> {
    let mut sender = sender.ready().await?;
    let (response, mut stream) = sender.send_request(head, false)?;
    stream.send_data(message, true)?;
    let (head, mut body) = response.await?.into_parts();
    while let Some(piece) = body.data().await {
        let length = piece?.len();
        body.flow_control().release_capacity(length)?;
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    // Who is refused at once has it in the head.
    let told = told(&trailers).or_else(|| told(&head.headers));
    Ok(told.unwrap_or_else(|| format!("http {}", head.status.as_u16())))
}

fn told(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let status = text("grpc-status")?;
    Some(text("modelless-refusal").map_or(format!("grpc {status}"), |name| format!("grpc {status} {name}")))
}

/// A field of bytes, as Protocol Buffers write it.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    [&[number << 3 | 2][..], &length, bytes].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let seven = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            out.push(seven);
            return out;
        }
        out.push(seven | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;

    #[test]
    fn a_message_has_the_bytes_that_the_protocol_says() {
        let input = Input { name: "in", dtype: "FP32", shape: vec![1, 300] };
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let flood = Flood::new(address, "key", "m", &input, &[7; 4]);
        let tensor = [b"\x0a\x02in".as_slice(), b"\x12\x04FP32", b"\x1a\x03\x01\xac\x02"].concat();
        let request = [b"\x0a\x01m".as_slice(), b"\x2a\x0f", &tensor, b"\x3a\x04\x07\x07\x07\x07"].concat();
        assert_eq!(flood.messages[0][..], [b"\0\0\0\0\x1a".as_slice(), &request].concat());
    }
    #[test]
    fn a_bomb_is_small_until_it_is_unpacked() {
        let flood = Flood::bombs(SocketAddr::from(([127, 0, 0, 1], 1)), "key").unwrap();
        let message = &flood.messages[0];
        assert!(message.len() < 100_000, "{}", message.len());
        let unpacked = std::io::copy(&mut GzDecoder::new(&message[5..]), &mut std::io::sink()).unwrap();
        assert_eq!(unpacked, BOMB as u64);
    }

    #[test]
    fn what_is_told_of_a_refusal_has_its_name() {
        let mut headers = HeaderMap::new();
        assert_eq!(told(&headers), None);
        headers.insert("grpc-status", "8".parse().unwrap());
        assert_eq!(told(&headers).as_deref(), Some("grpc 8"));
        headers.insert("modelless-refusal", "too_large".parse().unwrap());
        assert_eq!(told(&headers).as_deref(), Some("grpc 8 too_large"));
    }
}
