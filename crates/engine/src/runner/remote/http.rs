//! As much of an HTTP/1.1 client as the Open Inference Protocol needs: one kept connection, one request at a time, every
//! wait and every size bounded. Blocking, for a lane has nothing else to do.

use super::line::Line;
use super::peer::Access;
use crate::clock;
use std::fmt;
use std::fmt::Write as _;
use std::io;
use std::time::Instant;

/// A head is a few hundred bytes.
const MAX_HEAD: usize = 64 << 10;
/// The largest answer: a slot of outputs is at most half of the largest arena, and JSON is a few times larger.
pub(super) const MAX_BODY: usize = 1 << 30;
/// More than one at a time is never sent, so a larger piece only costs memory.
const PIECE: usize = 64 << 10;

/// How a server is spoken to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scheme {
    Http,
    Grpc,
}

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Server {
    pub(super) scheme: Scheme,
    /// All that is said to it is encrypted.
    pub(super) encrypted: bool,
    /// Host and port.
    pub(super) authority: String,
    /// Before every path; empty, or beginning with a slash and not ending with one.
    pub(super) prefix: String,
}

impl Server {
    /// From what a user writes.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, encrypted, rest) = match url.split_once("://") {
            Some(("http", rest)) => (Scheme::Http, false, rest),
            Some(("https", rest)) => (Scheme::Http, true, rest),
            Some(("grpc", rest)) => (Scheme::Grpc, false, rest),
            Some(("grpcs", rest)) => (Scheme::Grpc, true, rest),
            _ => {
                return Err(format!(
                    "`url` is {url:?}; it must begin with http:// or grpc://, or with https:// or grpcs:// for TLS"
                ));
            }
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !plain(rest) {
            return Err(format!(
                "`url` is {url:?}; it must be http://HOST:PORT, maybe with a path, or grpc://HOST:PORT"
            ));
        }
        let bare = authority.starts_with('[') && authority.ends_with(']');
        let no_port = authority.rsplit_once(':').is_none() || bare;
        if scheme == Scheme::Grpc && (no_port || !path.trim_end_matches('/').is_empty()) {
            return Err(format!("`url` is {url:?}; gRPC has no usual port and no path: grpc://HOST:PORT"));
        }
        let port = if encrypted { 443 } else { 80 };
        let authority = if no_port { format!("{authority}:{port}") } else { authority.to_owned() };
        Ok(Self { scheme, encrypted, authority, prefix: path.trim_end_matches('/').to_owned() })
    }

    /// Without its port, as a certificate names it.
    pub(super) fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Grpc => "grpc",
        };
        let encrypted = if self.encrypted { "s" } else { "" };
        write!(f, "{scheme}{encrypted}://{}{}", self.authority, self.prefix)
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Response {
    /// A header, by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A connection that is made when it is needed.
#[derive(Debug)]
pub(super) struct Client {
    access: Access,
    line: Option<Line>,
}

impl Client {
    pub(super) fn new(access: Access) -> Self {
        Self { access, line: None }
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Sends a request and waits for the answer. What fails on a connection kept from before is tried once more on a new
    /// one: servers close what is idle.
    pub(super) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Result<Response, String> {
        let until = clock::now() + self.access.limit;
        let kept = self.line.is_some();
        let first = self.attempt(method, path, headers, body, until);
        let result = match first {
            Err(error) if kept && error.kind() != io::ErrorKind::TimedOut => {
                self.attempt(method, path, headers, body, until)
            }
            other => other,
        };
        result.map_err(|error| self.access.unreachable(&error))
    }

    fn attempt(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: &[u8],
        until: Instant,
    ) -> io::Result<Response> {
        let mut line = match self.line.take() {
            Some(line) => line,
            None => Line::open(&self.access, until)?,
        };
        let Server { authority, prefix, .. } = &self.access.server;
        let mut head = format!("{method} {prefix}{path} HTTP/1.1\r\nhost: {authority}\r\naccept: */*\r\n");
        if method != "GET" {
            let _ = write!(head, "content-length: {}\r\n", body.len());
        }
        if let Some(token) = &self.access.token {
            let _ = write!(head, "authorization: {}\r\n", token.header());
        }
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        // Small ones in one packet.
        let mut request = head.into_bytes();
        if body.len() <= PIECE {
            request.extend_from_slice(body);
            line.write_all(&request, until)?;
        } else {
            line.write_all(&request, until)?;
            line.write_all(body, until)?;
        }
        let mut reader = Reader { line: &mut line, until, buffer: Vec::new(), at: 0 };
        let (response, keep) = reader.response()?;
        if keep {
            self.line = Some(line);
        }
        Ok(response)
    }
}

struct Reader<'a> {
    line: &'a mut Line,
    until: Instant,
    buffer: Vec<u8>,
    /// How much of the buffer was used.
    at: usize,
}

impl Reader<'_> {
    /// The next answer, and whether the connection can be used again.
    fn response(&mut self) -> io::Result<(Response, bool)> {
        loop {
            let head = self.head()?;
            let mut lines = head.split("\r\n");
            let status = lines.next().unwrap_or_default();
            let mut words = status.split(' ');
            let (version, code) =
                (words.next().unwrap_or_default(), words.next().and_then(|code| code.parse().ok()));
            let (true, Some(code)) = (version.starts_with("HTTP/1."), code) else {
                return Err(nonsense("it does not speak HTTP"));
            };
            if (100..200).contains(&code) {
                continue; // more is to come
            }
            let headers: Vec<(String, String)> = lines
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
                .collect();
            let mut response = Response { status: code, headers, body: Vec::new() };
            let says = |name: &str, word: &str| {
                response.header(name).is_some_and(|value| value.to_ascii_lowercase().contains(word))
            };
            let mut keep = version == "HTTP/1.1" && !says("connection", "close");
            let chunked = says("transfer-encoding", "chunked");
            let length = response.header("content-length").map(str::parse::<usize>);
            response.body = match (chunked, length) {
                _ if code == 204 || code == 304 => Vec::new(),
                (true, _) => self.chunks()?,
                (false, Some(Ok(length))) if length <= MAX_BODY => self.exactly(length)?,
                (false, Some(_)) => return Err(nonsense("its answer is too large, or has no length")),
                (false, None) => {
                    keep = false;
                    self.rest()?
                }
            };
            return Ok((response, keep));
        }
    }

    fn head(&mut self) -> io::Result<String> {
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&unread[..end]).into_owned();
                self.at += end + 4;
                return Ok(head);
            }
            if unread.len() > MAX_HEAD {
                return Err(nonsense("the head of its answer is too large"));
            }
            self.more()?;
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&unread[..end]).into_owned();
                self.at += end + 2;
                return Ok(line);
            }
            if unread.len() > MAX_HEAD {
                return Err(nonsense("a line of its answer is too long"));
            }
            self.more()?;
        }
    }

    fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() - self.at < length {
            self.more()?;
        }
        let bytes = self.buffer[self.at..self.at + length].to_vec();
        self.at += length;
        Ok(bytes)
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size =
                usize::from_str_radix(size, 16).map_err(|_| nonsense("its answer comes in no chunks"))?;
            if size == 0 {
                while !self.line()?.is_empty() {}
                return Ok(body);
            }
            if size > MAX_BODY || body.len() + size > MAX_BODY {
                return Err(nonsense("its answer is too large"));
            }
            body.extend_from_slice(&self.exactly(size)?);
            self.line()?;
        }
    }

    fn rest(&mut self) -> io::Result<Vec<u8>> {
        loop {
            match self.more() {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(self.buffer.split_off(self.at));
                }
                Err(error) => return Err(error),
                Ok(()) if self.buffer.len() > MAX_BODY => return Err(nonsense("its answer is too large")),
                Ok(()) => {}
            }
        }
    }

    fn more(&mut self) -> io::Result<()> {
        let filled = self.buffer.len();
        self.buffer.resize(filled + PIECE, 0);
        let read = self.line.read(&mut self.buffer[filled..], self.until);
        self.buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up in the middle of an answer"))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    /// A server that sends these answers, one on each connection, whatever it is asked.
    fn serving(answers: &'static [&'static str]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 1024];
                let _ = stream.read(&mut asked);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        Server { scheme: Scheme::Http, encrypted: false, authority, prefix: String::new() }
    }

    fn client(server: Server, limit: Duration) -> Client {
        let addresses = vec![server.authority.parse().unwrap()];
        Client::new(Access::test(server, addresses, limit))
    }

    fn get(server: Server) -> Result<Response, String> {
        client(server, Duration::from_secs(5)).send("GET", "/v2", &[], b"")
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let server = |authority: &str, prefix: &str| {
            let (authority, prefix) = (authority.to_owned(), prefix.to_owned());
            Ok(Server { scheme: Scheme::Http, encrypted: false, authority, prefix })
        };
        assert_eq!(Server::parse("http://h:8000"), server("h:8000", ""));
        assert_eq!(Server::parse("http://h/a/b/"), server("h:80", "/a/b"));
        assert_eq!(Server::parse("http://[::1]:9/"), server("[::1]:9", ""));
        let grpc = Server::parse("grpc://h:9/").unwrap();
        assert_eq!((grpc.scheme, grpc.to_string().as_str()), (Scheme::Grpc, "grpc://h:9"));
        for wrong in [
            "h:8000",
            "ftp://h",
            "http://",
            "http://a@b",
            "http://h/\r\nx",
            "grpc://h",
            "grpc://[::1]",
            "grpc://h:9/a",
        ] {
            assert!(Server::parse(wrong).is_err(), "{wrong:?}");
        }
        for (url, scheme, shown, host) in [
            ("https://h", Scheme::Http, "https://h:443", "h"),
            ("https://h:8443/a/", Scheme::Http, "https://h:8443/a", "h"),
            ("grpcs://[::1]:9", Scheme::Grpc, "grpcs://[::1]:9", "::1"),
        ] {
            let server = Server::parse(url).unwrap();
            assert!(server.encrypted);
            assert_eq!((server.scheme, server.to_string().as_str(), server.host()), (scheme, shown, host));
        }
    }

    #[test]
    fn bodies_end_by_length_by_chunks_or_with_the_connection() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\nhello",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        ] {
            let server = serving(vec![answer].leak());
            assert_eq!(get(server).unwrap().body, b"hello", "{answer}");
        }
    }

    #[test]
    fn a_connection_that_was_closed_meanwhile_is_made_again() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let mut client = client(serving(vec![answer, answer].leak()), Duration::from_secs(5));
        for _ in 0..2 {
            assert_eq!(client.send("GET", "/", &[], b"").unwrap().body, b"ok");
        }
    }

    #[test]
    fn nonsense_silence_and_absence_are_told_apart() {
        let said = get(serving(&["SSH-2.0-x\r\n\r\n"])).unwrap_err();
        assert!(said.contains("does not speak HTTP"), "{said}");
        let said = get(serving(&["HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"])).unwrap_err();
        assert!(said.contains("hung up"), "{said}");
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            scheme: Scheme::Http,
            encrypted: false,
            authority: silent.local_addr().unwrap().to_string(),
            prefix: String::new(),
        };
        let said = client(server.clone(), Duration::from_millis(50)).send("GET", "/", &[], b"").unwrap_err();
        assert!(said.contains("did not answer within 50 ms"), "{said}");
        drop(silent);
        let said = get(server).unwrap_err();
        assert!(said.contains("cannot be reached"), "{said}");
    }
}
