//! A raw HTTP/1.1 client: any bytes out, the answer parsed strictly.
//!
//! It keeps the connection, sends each request in one write with TCP_NODELAY, and never retries: what a server
//! does with a bad request is what the caller wants to see.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);
/// An answer is small; a server that sends more than this without end is broken.
const MAX_RESPONSE: usize = 64 << 20;

/// A request, kept as the bytes that go out.
#[derive(Clone, Debug)]
pub struct Request {
    head: Vec<u8>,
    body: Vec<u8>,
    /// Answers to HEAD have a length but no body.
    pub head_only: bool,
}

impl Request {
    pub fn new(method: &str, target: &str) -> Self {
        let head = format!("{method} {target} HTTP/1.1\r\nhost: modelless\r\n").into_bytes();
        Self { head, body: Vec::new(), head_only: method == "HEAD" }
    }

    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    pub fn post(target: &str) -> Self {
        Self::new("POST", target)
    }

    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.head.extend_from_slice(name.as_bytes());
        self.head.extend_from_slice(b": ");
        self.head.extend_from_slice(value.as_ref());
        self.head.extend_from_slice(b"\r\n");
        self
    }

    /// The body with its right `content-length`.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        let length = self.body.len().to_string();
        self.header("content-length", length)
    }

    /// The body with whatever length the headers tell, if any.
    pub fn body_as_is(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub fn json(self, value: &Value) -> Self {
        self.header("content-type", "application/json").body(value.to_string())
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        [self.head.as_slice(), b"\r\n", &self.body].concat()
    }
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of that name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("the body is no JSON: {self}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text();
        let shown: String = text.chars().take(400).collect();
        write!(f, "{} {shown}", self.status)?;
        if shown.len() < text.len() { f.write_str("...") } else { Ok(()) }
    }
}

/// What came back for bytes that may deserve no answer.
#[derive(Debug)]
pub enum Answer {
    Response(Response),
    /// The server closed or reset the connection without a word.
    Closed,
}

/// A kept connection.
pub struct Connection {
    stream: Stream,
    /// Read, but not yet part of an answer.
    buffer: Vec<u8>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: Stream::Plain(stream), buffer: Vec::new() })
    }

    /// By TLS: the server shows a certificate for its address that this authority signed.
    #[cfg(feature = "certificates")]
    pub fn open_tls(address: SocketAddr, authority: &std::path::Path) -> Result<Self> {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;

        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority)?)?;
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = std::sync::Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        let session = rustls::ClientConnection::new(config, address.ip().into())?;
        let Self { stream, buffer } = Self::open(address)?;
        let stream = match stream {
            Stream::Plain(stream) => Stream::Tls(Box::new(rustls::StreamOwned::new(session, stream))),
            Stream::Tls(_) => stream,
        };
        Ok(Self { stream, buffer })
    }

    /// How long an answer may take before that is an error.
    pub fn set_patience(&mut self, patience: Duration) -> Result<()> {
        Ok(self.stream.tcp().set_read_timeout(Some(patience))?)
    }

    /// Sends a request and reads its answer.
    pub fn exchange(&mut self, request: &Request) -> Result<Response> {
        self.exchange_bytes(&request.to_bytes(), request.head_only)
    }

    /// The same for bytes made beforehand, so that a timed loop copies nothing.
    pub fn exchange_bytes(&mut self, request: &[u8], head_only: bool) -> Result<Response> {
        self.stream.write_all(request).context("sending the request")?;
        self.receive(head_only)?.context("the server closed the connection without an answer")
    }

    /// Sends a request made beforehand and waits until the last byte of its answer is here, without taking it apart:
    /// for timed loops, so that this client's own parsing is not counted as the server's. Only for answers with a
    /// `content-length`, written in lower case.
    pub fn exchange_whole(&mut self, request: &[u8]) -> Result<&[u8]> {
        const LENGTH: &[u8] = b"\r\ncontent-length: ";
        self.buffer.clear();
        self.stream.write_all(request).context("sending the request")?;
        loop {
            ensure!(self.read_more()?, "the server closed the connection without a whole answer");
            let Some(head_end) = find(&self.buffer, b"\r\n\r\n") else { continue };
            let head = &self.buffer[..head_end];
            let at = find(head, LENGTH).context("an answer without a content-length")?;
            let digits = head[at + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
            let length = digits.fold(0_usize, |length, digit| length * 10 + usize::from(digit - b'0'));
            if self.buffer.len() >= head_end + 4 + length {
                return Ok(&self.buffer);
            }
        }
    }

    /// Sends any bytes. A server that has seen enough may close while we still write: that is its answer.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        match self.stream.write_all(bytes) {
            Err(error) if !is_hang_up(&error) => Err(error).context("sending"),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Says that nothing more will come, so that a server waiting for a promised body can give up at once.
    pub fn finish(&mut self) {
        let _ = self.stream.tcp().shutdown(Shutdown::Write);
    }

    /// Whether something has come that was not read yet, without waiting for it.
    pub fn has_answer(&self) -> Result<bool> {
        if !self.buffer.is_empty() {
            return Ok(true);
        }
        let stream = self.stream.tcp();
        stream.set_nonblocking(true)?;
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        match peeked {
            Ok(_) => Ok(true), // the end is an answer, too
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error).context("looking for an answer"),
        }
    }

    /// Reads whatever the server has to say.
    pub fn answer(&mut self) -> Result<Answer> {
        Ok(self.receive(false)?.map_or(Answer::Closed, Answer::Response))
    }

    /// The next answer, `None` when the connection ended instead. Interim answers (1xx) are passed over.
    pub fn receive(&mut self, head_only: bool) -> Result<Option<Response>> {
        loop {
            let head_end = loop {
                if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                    break at;
                }
                if !self.read_more()? {
                    let left = String::from_utf8_lossy(&self.buffer);
                    ensure!(self.buffer.is_empty(), "the connection ended within an answer's head: {left:?}");
                    return Ok(None);
                }
            };
            let (status, headers) = parse_head(&self.buffer[..head_end])?;
            self.buffer.drain(..head_end + 4);
            if status < 200 {
                continue;
            }
            let mut response = Response { status, headers, body: Vec::new() };
            if !head_only && status != 204 && status != 304 {
                response.body = self.read_body(&response)?;
            }
            return Ok(Some(response));
        }
    }

    fn read_body(&mut self, response: &Response) -> Result<Vec<u8>> {
        if response.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return self.read_chunks();
        }
        if let Some(length) = response.header("content-length") {
            let length: usize =
                length.trim().parse().with_context(|| format!("content-length {length:?}"))?;
            return self.take(length);
        }
        while self.read_more()? {}
        Ok(std::mem::take(&mut self.buffer))
    }

    fn read_chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.take_line()?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).with_context(|| format!("chunk size {size:?}"))?;
            if size == 0 {
                while !self.take_line()?.is_empty() {} // trailers
                return Ok(body);
            }
            body.extend(self.take(size)?);
            ensure!(self.take_line()?.is_empty(), "a chunk is longer than its size says");
            ensure!(body.len() <= MAX_RESPONSE, "a chunked answer of more than {MAX_RESPONSE} bytes");
        }
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        ensure!(length <= MAX_RESPONSE, "an answer of {length} bytes");
        while self.buffer.len() < length {
            let have = self.buffer.len();
            ensure!(self.read_more()?, "the connection ended after {have} of {length} bytes of the body");
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    fn take_line(&mut self) -> Result<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let mut line = self.take(at + 2)?;
                line.truncate(at);
                return String::from_utf8(line).context("a line of a chunked body");
            }
            ensure!(self.read_more()?, "the connection ended within a chunked body");
        }
    }

    /// `false` when the other side has closed or reset.
    fn read_more(&mut self) -> Result<bool> {
        let mut block = [0; 4 << 10];
        match self.stream.read(&mut block) {
            Ok(0) => Ok(false),
            Ok(read) => {
                self.buffer.extend_from_slice(&block[..read]);
                ensure!(self.buffer.len() <= MAX_RESPONSE, "an answer without end");
                Ok(true)
            }
            Err(error) if is_hang_up(&error) => Ok(false),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!("no answer within {TIMEOUT:?}")
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error).context("reading the answer"),
        }
    }
}

/// What bytes go over.
enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "certificates")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

impl Stream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            #[cfg(feature = "certificates")]
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            #[cfg(feature = "certificates")]
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            #[cfg(feature = "certificates")]
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            #[cfg(feature = "certificates")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

fn is_hang_up(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
            | ErrorKind::NotConnected
    )
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

type Head = (u16, Vec<(String, String)>);

fn parse_head(head: &[u8]) -> Result<Head> {
    let text = std::str::from_utf8(head).context("an answer's head that is not UTF-8")?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("no HTTP/1.x status line: {first:?}"))?;
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':').with_context(|| format!("no header: {line:?}"))?;
            Ok((name.to_owned(), value.trim().to_owned()))
        })
        .collect::<Result<_>>()?;
    Ok((status, headers))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that answers one connection with these bytes and closes.
    fn answering(bytes: &'static [u8]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(bytes).unwrap());
        Connection::open(address).unwrap()
    }

    #[test]
    fn reads_a_body_of_a_told_length_and_the_answer_after_it() {
        let mut connection = answering(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 204 No Content\r\n\r\n\
              HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\n\r\nall of it",
        );
        while !connection.has_answer().unwrap() {
            std::thread::yield_now();
        }
        let first = connection.receive(false).unwrap().unwrap();
        assert_eq!((first.status, first.text().as_str()), (200, "hi"));
        assert_eq!(first.header("content-length"), Some("2"));
        assert_eq!(connection.receive(false).unwrap().unwrap().status, 204);
        assert_eq!(connection.receive(false).unwrap().unwrap().text(), "all of it");
        assert!(connection.receive(false).unwrap().is_none());
    }

    #[test]
    fn reads_chunks() {
        let mut connection = answering(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: r\r\n\r\n",
        );
        assert_eq!(connection.receive(false).unwrap().unwrap().text(), "abcde");
    }

    #[test]
    fn a_broken_answer_is_an_error_and_never_a_guess() {
        let cases: [(&[u8], &str); 4] = [
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", "after 5 of 9 bytes"),
            (b"HTTP/1.1 2", "within an answer's head"),
            (b"SSH-2.0-x\r\n\r\n", "no HTTP/1.x status line"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n", "longer than its size"),
        ];
        for (bytes, expected) in cases {
            let error = answering(bytes).receive(false).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should say {expected}");
        }
    }

    #[test]
    fn writes_a_request_as_told() {
        let bytes = Request::post("/x?a=b").header("a", "1").body("hi").to_bytes();
        assert_eq!(bytes, b"POST /x?a=b HTTP/1.1\r\nhost: modelless\r\na: 1\r\ncontent-length: 2\r\n\r\nhi");
    }
}
