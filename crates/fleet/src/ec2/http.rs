//! One request over a connection of its own, by HTTP or HTTPS, within a time. It waits on its thread.
//!
//! A cloud is asked about once a second, so nothing is kept open. What comes is bounded, whatever a server says of its length.

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Where machines keep the certificates of all whom they believe.
const USUAL: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const HEAD_BYTES: usize = 64 << 10;
const BODY_BYTES: usize = 16 << 20;

/// A server: `http://HOST[:PORT]` or `https://HOST[:PORT]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Server {
    tls: bool,
    host: String,
    port: u16,
}

impl Server {
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let wrong = || {
            // Whatever stands before an `@` may be a secret.
            let shown = url.rsplit_once('@').map_or(url, |(_, host)| host);
            format!("{shown:?} is no address; expected something like https://ec2.eu-central-1.amazonaws.com")
        };
        let (tls, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) | None => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            Some(_) | None => (rest, None),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
        if host.is_empty() || !host.chars().all(plain) {
            return Err(wrong());
        }
        let usual = if tls { 443 } else { 80 };
        let port = port.map_or(Ok(usual), |port| port.parse().map_err(|_| wrong()))?;
        Ok(Self { tls, host: host.to_owned(), port })
    }

    /// Without the brackets of an address of IPv6.
    fn bare(&self) -> &str {
        self.host.trim_matches(['[', ']'])
    }

    /// As the header `host` names it.
    pub(super) fn named(&self) -> String {
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }
}

/// What is asked. `host`, `content-length` and `connection` are added.
pub(super) struct Call<'a> {
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
}

/// What came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// How servers are reached.
#[derive(Clone, Debug)]
pub(super) struct Http {
    /// Certificates of the authorities that are believed, in PEM; those that this machine believes where nothing is named.
    pub(super) ca: Option<PathBuf>,
    pub(super) within: Duration,
}

impl Http {
    pub(super) fn send(&self, server: &Server, call: &Call<'_>) -> io::Result<Answer> {
        let until = Instant::now() + self.within;
        let socket = connect(server, until)?;
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", call.method, call.target, server.named());
        for (name, value) in call.headers {
            if value.chars().any(char::is_control) {
                return Err(io::Error::other(format!("the header {name} would have a line of its own")));
            }
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let _ = write!(head, "content-length: {}\r\nconnection: close\r\n\r\n", call.body.len());
        let mut socket = Timed { socket, until };
        if server.tls {
            let session = session(server.bare(), self.ca.as_deref())?;
            exchange(&mut StreamOwned::new(session, socket), head.as_bytes(), call.body)
        } else {
            exchange(&mut socket, head.as_bytes(), call.body)
        }
    }
}

/// To the first of its addresses that is there.
fn connect(server: &Server, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name stands for no address");
    for address in (server.bare(), server.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn session(host: &str, ca: Option<&Path>) -> io::Result<ClientConnection> {
    let usual = || USUAL.iter().map(Path::new).find(|path| path.is_file());
    let path = ca.or_else(usual).ok_or_else(|| {
        io::Error::other(
            "this machine has no certificates of authorities in a usual place: name a PEM file with `ca`",
        )
    })?;
    let unread = |error: io::Error| io::Error::other(format!("reading {}: {error}", path.display()));
    let mut known = RootCertStore::empty();
    let pem = fs::read(path).map_err(unread)?;
    let (usable, _) = known.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
    if usable == 0 {
        return Err(io::Error::other(format!("{} has no certificate that can be used", path.display())));
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(known), Arc::clone(&provider));
    let verifier = verifier.build().map_err(io::Error::other)?;
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(io::Error::other)?.with_webpki_verifier(verifier).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)
}

fn exchange(line: &mut (impl Read + Write), head: &[u8], body: &[u8]) -> io::Result<Answer> {
    line.write_all(head)?;
    line.write_all(body)?;
    line.flush()?;
    let mut reader = Reader { line, bytes: Vec::new(), at: 0 };
    let mut first = reader.head()?;
    while (100..200).contains(&first.status) {
        first = reader.head()?;
    }
    let Head { status, chunked, length } = first;
    let body = match (chunked, length) {
        (true, _) => reader.chunks()?,
        (false, _) if status == 204 || status == 304 => Vec::new(),
        (false, Some(length)) => reader.exactly(length)?,
        (false, None) => reader.all()?,
    };
    Ok(Answer { status, body })
}

struct Head {
    status: u16,
    chunked: bool,
    length: Option<usize>,
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("what came is no answer by HTTP: {what}"))
}

/// What comes, with what was read ahead.
struct Reader<'a, L> {
    line: &'a mut L,
    bytes: Vec<u8>,
    at: usize,
}

impl<L: Read> Reader<'_, L> {
    /// Whether more came.
    fn more(&mut self) -> io::Result<bool> {
        let mut some = [0; 8 << 10];
        let count = loop {
            match self.line.read(&mut some) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.bytes.drain(..std::mem::take(&mut self.at));
        self.bytes.extend_from_slice(&some[..count]);
        Ok(count > 0)
    }

    /// A line without its end.
    fn text(&mut self) -> io::Result<String> {
        loop {
            let rest = &self.bytes[self.at..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let text = String::from_utf8_lossy(&rest[..end]).trim_end_matches('\r').to_owned();
                self.at += end + 1;
                return Ok(text);
            }
            if rest.len() > HEAD_BYTES {
                return Err(nonsense("a line without an end"));
            }
            if !self.more()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn head(&mut self) -> io::Result<Head> {
        let first = self.text()?;
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok()).ok_or_else(|| nonsense("no status"))?;
        let (mut head, mut bytes) = (Head { status, chunked: false, length: None }, 0);
        loop {
            let text = self.text()?;
            bytes += text.len();
            if text.is_empty() {
                return Ok(head);
            }
            if bytes > HEAD_BYTES {
                return Err(nonsense("its head is too long"));
            }
            let (name, value) = text.split_once(':').ok_or_else(|| nonsense("a header without a value"))?;
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    let length = value.trim().parse();
                    head.length = Some(length.map_err(|_| nonsense("its length is no number"))?);
                }
                "transfer-encoding" => head.chunked = value.trim().eq_ignore_ascii_case("chunked"),
                _ => {}
            }
        }
    }

    fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        if length > BODY_BYTES {
            return Err(nonsense("it is too long"));
        }
        while self.bytes.len() - self.at < length {
            if !self.more()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let body = self.bytes[self.at..self.at + length].to_vec();
        self.at += length;
        Ok(body)
    }

    fn all(&mut self) -> io::Result<Vec<u8>> {
        while self.more()? {
            if self.bytes.len() > BODY_BYTES {
                return Err(nonsense("it is too long"));
            }
        }
        Ok(self.bytes.split_off(self.at))
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = self.text()?;
            let size = size.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| nonsense("a piece without a length"))?;
            if size > BODY_BYTES - body.len() {
                return Err(nonsense("it is too long"));
            }
            if size == 0 {
                return Ok(body); // what may follow is of no use here, and the connection ends
            }
            body.extend(self.exactly(size)?);
            if !self.text()?.is_empty() {
                return Err(nonsense("a piece is longer than it says"));
            }
        }
    }
}

/// Time left; never zero, which would mean to wait without end.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket that waits until a moment at most, however often it is asked.
struct Timed {
    socket: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.until)?))?;
        self.socket.read(into).map_err(over)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.until)?))?;
        self.socket.write(bytes).map_err(over)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket says that it would have to wait longer.
fn over(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// What is sent goes nowhere; what is read was there before.
    struct Said(Cursor<Vec<u8>>);

    impl Read for Said {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let few = into.len().min(5); // pieces end anywhere
            self.0.read(&mut into[..few])
        }
    }

    impl Write for Said {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answer(text: &str) -> io::Result<(u16, String)> {
        let said = exchange(&mut Said(Cursor::new(text.as_bytes().to_vec())), b"", b"")?;
        Ok((said.status, String::from_utf8(said.body).unwrap()))
    }

    #[test]
    fn answers_are_read_whichever_way_they_say_their_length() {
        let continued = "HTTP/1.1 100 Continue\r\n\r\n";
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellomore".to_owned(),
            "HTTP/1.0 200 OK\r\n\r\nhello".to_owned(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
                .to_owned(),
            format!("{continued}HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello"),
        ] {
            assert_eq!(answer(&text).unwrap(), (200, "hello".to_owned()), "{text}");
        }
        assert_eq!(
            answer("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap(),
            (404, String::new())
        );
    }

    #[test]
    fn what_is_cut_short_too_long_or_no_answer_is_an_error() {
        for text in [
            "",
            "hello\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffff\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        ] {
            assert!(answer(text).is_err(), "{text}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(HEAD_BYTES + 10));
        assert!(answer(&endless).is_err());
    }

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_port() {
        let parsed = |url| Server::parse(url).map(|server| (server.tls, server.port, server.named()));
        assert_eq!(parsed("https://ec2.example"), Ok((true, 443, "ec2.example".to_owned())));
        assert_eq!(parsed("http://127.0.0.1:5000/"), Ok((false, 5000, "127.0.0.1:5000".to_owned())));
        assert_eq!(parsed("http://[::1]:80"), Ok((false, 80, "[::1]".to_owned())));
        for url in
            ["ec2.example", "ftp://a", "http://", "http://a b", "http://a:b", "http://a/b", "http://a@b"]
        {
            assert!(parsed(url).unwrap_err().contains("no address"), "{url}");
        }
        let said = parsed("https://user:a-password@host").unwrap_err();
        assert!(said.contains("host") && !said.contains("a-password"), "{said}");
        let six = Server::parse("https://[::1]").unwrap();
        assert_eq!((six.bare(), six.named()), ("::1", "[::1]".to_owned()));
    }
}
