//! One request, one reply, and errors that say what to do.

use super::tls::{Connector, TlsOptions, wrong_with_tls};
use crate::exit::{Refused, usage};
use crate::progress::short;
use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A server that answers with more is not ours.
const MAX_ANSWER: usize = 256 << 20;
/// Registering measures; everything else is far quicker.
const WITHIN: Duration = Duration::from_hours(1);

/// Between two looks how far a long answer is, and how long one may take.
const WATCH_EVERY: Duration = Duration::from_millis(500);
const WATCH_WITHIN: Duration = Duration::from_secs(2);

/// A server looks at its store about once a second.
const SOON_TRIES: u32 = 50;
const SOON_PAUSE: Duration = Duration::from_millis(100);

/// A server.
pub(crate) struct Api {
    base: String,
    /// What the server knows us by.
    key: Option<HeaderValue>,
    client: Client<Connector, Full<Bytes>>,
    runtime: Runtime,
    /// An answer takes no longer.
    within: Duration,
}

/// It did not answer, or not to the end: another try may help.
#[derive(Debug)]
pub(crate) struct Away(String);

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Away {}

/// What it answered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Api {
    pub(crate) fn new(server: &str, key: Option<HeaderValue>, tls: &TlsOptions) -> anyhow::Result<Self> {
        let base = server.trim_end_matches('/').to_owned();
        let plain = base.strip_prefix("http://");
        let host = plain.or_else(|| base.strip_prefix("https://"));
        if host.is_none_or(|host| host.is_empty() || host.contains(['?', '#'])) {
            return Err(usage(format!(
                "{server:?} is no address of a server; expected something like http://127.0.0.1:8080"
            )));
        }
        let connector = Connector::new(plain.is_none(), tls)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { base, key, client, runtime, within: WITHIN })
    }

    /// The same for one who does not wait as long for an answer.
    pub(crate) fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Where it is.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Reply> {
        self.send(Method::GET, path, None, Bytes::new())
    }

    /// What was made a moment ago: a server shows it as soon as it has looked at its store again.
    pub(crate) fn get_soon(&self, path: &str) -> anyhow::Result<Reply> {
        for _ in 0..SOON_TRIES {
            let reply = self.get(path)?;
            if reply.status != StatusCode::NOT_FOUND {
                return Ok(reply);
            }
            self.pause(SOON_PAUSE);
        }
        self.get(path)
    }

    /// Between two looks.
    pub(crate) fn pause(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<Reply> {
        self.send(Method::DELETE, path, None, Bytes::new())
    }

    pub(crate) fn post_json(&self, path: &str, body: &Value) -> anyhow::Result<Reply> {
        self.send(Method::POST, path, Some("application/json"), body.to_string().into())
    }

    /// The same where the answer takes long: meanwhile what this other path answers is told every now and then. It is only for
    /// people, so that it may fail.
    pub(crate) fn post_json_watching(
        &self,
        path: &str,
        body: &Value,
        (look, tell): (&str, &mut dyn FnMut(&Value)),
    ) -> anyhow::Result<Reply> {
        let request = self.request(Method::POST, path, Some("application/json"), body.to_string().into())?;
        self.runtime.block_on(async {
            let mut answer = std::pin::pin!(self.exchange(request));
            loop {
                let seen = async {
                    tokio::time::sleep(WATCH_EVERY).await;
                    let request = self.request(Method::GET, look, None, Bytes::new()).ok()?;
                    let seen = tokio::time::timeout(WATCH_WITHIN, self.exchange(request)).await.ok()?.ok()?;
                    seen.ok().ok()?.json().ok()
                };
                tokio::select! {
                    biased;
                    answer = &mut answer => return answer,
                    seen = seen => if let Some(seen) = seen { tell(&seen) },
                }
            }
        })
    }

    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        media: Option<&str>,
        body: Bytes,
    ) -> anyhow::Result<Reply> {
        let request = self.request(method, path, media, body)?;
        self.runtime.block_on(self.exchange(request))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        media: Option<&str>,
        body: Bytes,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let uri = format!("{}{path}", self.base);
        let mut request = Request::builder().method(method).uri(&uri);
        if let Some(media) = media {
            request = request.header(http::header::CONTENT_TYPE, media);
        }
        if let Some(key) = &self.key {
            request = request.header(http::header::AUTHORIZATION, key);
        }
        let request = request.body(Full::new(body));
        request.map_err(|error| usage(format!("{uri} is no address: {error}")))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Reply> {
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| self.unreachable(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body =
                body.map_err(|error| Away(format!("the answer of {} broke off: {error}", self.base)))?;
            Ok(Reply { status: head.status, headers: head.headers, body: body.to_bytes() })
        };
        let late = || Away(format!("{} did not answer within {}", self.base, short(self.within)));
        tokio::time::timeout(self.within, exchange).await.map_err(|_| late())?
    }

    /// Has `each` read what is told by server-sent events, one at a time, until the server ends the answer.
    pub(crate) fn told(
        &self,
        path: &str,
        each: &mut dyn FnMut(&Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let uri = format!("{}{path}", self.base);
        let mut request = Request::get(&uri).header(http::header::ACCEPT, "text/event-stream");
        if let Some(key) = &self.key {
            request = request.header(http::header::AUTHORIZATION, key);
        }
        let request = request.body(Full::default());
        let request = request.map_err(|error| usage(format!("{uri} is no address: {error}")))?;
        self.runtime.block_on(async {
            let response = self.client.request(request).await.map_err(|error| self.unreachable(&error))?;
            let (head, mut body) = response.into_parts();
            if !head.status.is_success() {
                let body = Limited::new(body, MAX_ANSWER).collect().await;
                let body = body.map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))?.to_bytes();
                Reply { status: head.status, headers: head.headers, body }.ok()?;
                return Ok(());
            }
            let mut rest = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame
                    .map_err(|error| anyhow::anyhow!("the answer of {} broke off: {error}", self.base))?;
                rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                anyhow::ensure!(rest.len() <= MAX_ANSWER, "{} tells too much at once", self.base);
                let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                for line in rest[..whole].split(|byte| *byte == b'\n') {
                    if let Some(data) = line.strip_prefix(b"data: ") {
                        each(&serde_json::from_slice(data).context("what the server tells is not JSON")?)?;
                    }
                }
                rest.drain(..whole);
            }
            Ok(())
        })
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error) -> anyhow::Error {
        let mut cause: &(dyn std::error::Error + 'static) = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
            if let Some(why) = wrong_with_tls(cause) {
                return anyhow::anyhow!("no TLS with {}: {why}", self.base);
            }
            let no_http = cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
            if no_http && self.base.starts_with("http:") {
                return anyhow::anyhow!(
                    "{} does not answer in HTTP; perhaps its address begins with https://",
                    self.base
                );
            }
        }
        let base = &self.base;
        if error.is_connect() {
            let why = format!(
                "cannot reach {base}: {cause}. Is a server running? Start one with `modelless up`, or name another \
                 with --server URL or MODELLESS_SERVER"
            );
            Away(why).into()
        } else {
            Away(format!("{base} did not answer: {cause}")).into()
        }
    }
}

impl Reply {
    /// The answer, unless it is a "no".
    pub(crate) fn ok(self) -> anyhow::Result<Self> {
        if self.status.is_success() {
            return Ok(self);
        }
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let why = match (body["error"].as_str(), body["reason"].as_str()) {
            (Some(error), Some(reason)) => format!("{error} ({reason}){}", nearest(&body["nearest"])),
            _ => format!("the server answered {}: {}", self.status, String::from_utf8_lossy(&self.body)),
        };
        match self.status {
            StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(Refused(why).into()),
            StatusCode::BAD_REQUEST => Err(usage(why)),
            _ => Err(anyhow::anyhow!(why)),
        }
    }

    pub(crate) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body)
            .context("the server's answer is not JSON; is it a modelless server?")
    }
}

/// What could be met instead, one goal at a time.
fn nearest(nearest: &Value) -> String {
    let mut text = String::new();
    for (goal, option) in
        [("accuracy", "--accuracy"), ("latency_ms", "--latency-ms"), ("max_cost", "--max-cost")]
    {
        if let Some(value) = nearest[goal].as_f64() {
            let join =
                if text.is_empty() { "\n  could be met, the other goals as they were:" } else { " or" };
            let _ = write!(text, "{join} {option} {value}");
        }
    }
    text
}

/// The key to present: of a file, or of the environment. No message says what it is.
pub(crate) fn presented(file: Option<&Path>) -> anyhow::Result<Option<HeaderValue>> {
    let (text, place) = match file {
        Some(file) => {
            let read = std::fs::read_to_string(file);
            let text =
                read.map_err(|error| usage(format!("--key-file: cannot read {}: {error}", file.display())))?;
            (text, "the file of --key-file")
        }
        None => (std::env::var("MODELLESS_KEY").unwrap_or_default(), "MODELLESS_KEY"),
    };
    let text = text.trim();
    if text.is_empty() {
        return if file.is_some() { Err(usage(format!("{place} is empty"))) } else { Ok(None) };
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {text}"))
        .map_err(|_| usage(format!("{place} holds something that is no key")))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// A part of a path, with everything that means something there written out.
pub(crate) fn segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'_' | b'~')
            || (byte == b'.' && name.len() > 2)
        {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use modelless_testkit::free_port;
    use std::io::{Read as _, Write as _};

    fn reply(status: u16, body: &str) -> Reply {
        let status = StatusCode::from_u16(status).unwrap();
        Reply { status, headers: HeaderMap::new(), body: Bytes::copy_from_slice(body.as_bytes()) }
    }

    #[test]
    fn a_refusal_says_what_could_be_met() {
        let body = r#"{"error": "too fast", "reason": "latency_unreachable",
            "nearest": {"accuracy": 0.8375, "latency_ms": 0.9}}"#;
        let error = reply(422, body).ok().unwrap_err();
        assert!(error.is::<Refused>());
        let text = error.to_string();
        assert!(text.contains("too fast (latency_unreachable)"), "{text}");
        assert!(text.contains("--accuracy 0.8375 or --latency-ms 0.9"), "{text}");
        assert!(reply(400, r#"{"error": "no", "reason": "malformed"}"#).ok().unwrap_err().is::<Usage>());
        assert!(!reply(404, r#"{"error": "no", "reason": "unknown_task"}"#).ok().unwrap_err().is::<Usage>());
        assert!(reply(502, "<html>").ok().unwrap_err().to_string().contains("502"));
        assert!(reply(200, "{}").ok().is_ok());
    }

    #[test]
    fn names_become_one_part_of_a_path() {
        assert_eq!(segment("cnn_m"), "cnn_m");
        assert_eq!(segment("a/b c?ä"), "a%2Fb%20c%3F%C3%A4");
        assert_eq!((segment(".."), segment("v1.2")), ("%2E%2E".to_owned(), "v1.2".to_owned()));
    }

    /// Answers each connection with the next of these.
    fn server(answers: &[&'static str]) -> (String, std::thread::JoinHandle<()>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = answers.to_vec();
        let serving = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 4096];
                assert!(stream.read(&mut head).unwrap() > 0);
                let length = "{}".len();
                write!(
                    stream,
                    "HTTP/1.1 {answer}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{{}}"
                )
                .unwrap();
            }
        });
        (url, serving)
    }

    #[test]
    fn what_was_made_a_moment_ago_is_waited_for() {
        let (url, serving) = server(&["404 Not Found", "404 Not Found", "200 OK"]);
        assert_eq!(
            Api::new(&url, None, &TlsOptions::default()).unwrap().get_soon("/v1/tasks/new").unwrap().status,
            StatusCode::OK
        );
        serving.join().unwrap();
    }

    #[test]
    fn while_an_answer_takes_long_it_is_looked_at_how_far_it_is() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = |mut stream: &std::net::TcpStream, status: &str, body: &str| {
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        };
        let serving = std::thread::spawn(move || {
            let asked = |mut stream: &std::net::TcpStream| {
                let mut head = [0; 4096];
                let read = stream.read(&mut head).unwrap();
                String::from_utf8_lossy(&head[..read]).into_owned()
            };
            let (long, _) = listener.accept().unwrap();
            assert!(asked(&long).starts_with("POST /long"));
            for (status, body) in [("404 Not Found", "{}"), ("200 OK", "{\"far\": 3}")] {
                let (look, _) = listener.accept().unwrap();
                assert!(asked(&look).starts_with("GET /look"));
                answer(&look, status, body);
            }
            // The next look says that the one before was told.
            let (_next, _) = listener.accept().unwrap();
            answer(&long, "201 Created", "{\"done\": true}");
        });
        let mut seen = Vec::new();
        let api = Api::new(&url, None, &TlsOptions::default()).unwrap();
        let tell = &mut |far: &Value| seen.push(far["far"].clone());
        let reply = api.post_json_watching("/long", &serde_json::json!({}), ("/look", tell)).unwrap();
        assert_eq!(reply.json().unwrap()["done"], true);
        assert_eq!(seen, [3], "what cannot be told is not told");
        serving.join().unwrap();
    }

    #[test]
    fn a_server_of_tls_that_is_asked_without_is_told_as_that() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            // An alert, "unexpected message".
            stream.write_all(&[0x15, 3, 3, 0, 2, 2, 10]).unwrap();
        });
        let error = Api::new(&url, None, &TlsOptions::default()).unwrap().get("/").unwrap_err().to_string();
        assert!(
            error.ends_with("does not answer in HTTP; perhaps its address begins with https://"),
            "{error}"
        );
        serving.join().unwrap();
    }

    #[test]
    fn a_server_that_is_not_there_is_said_how_to_start() {
        let nowhere = format!("http://127.0.0.1:{}/", free_port().unwrap());
        let api = Api::new(&nowhere, None, &TlsOptions::default()).unwrap();
        let error = api.get("/v1/tasks").unwrap_err().to_string();
        assert!(error.contains("modelless up") && error.contains("refused"), "{error}");
        for wrong in ["", "ftp://x", "http://", "https://", "localhost:8080"] {
            assert!(Api::new(wrong, None, &TlsOptions::default()).is_err(), "{wrong}");
        }
    }
}
