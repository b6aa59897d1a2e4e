//! Servers that encrypt: who they are is proven to the runner, in its box, by certificates of whom the node believes.

use super::conformance::at_peer;
use super::tokens::{TOKEN, strict};
use super::*;
use modelless_engine::BatchError;
use modelless_testkit::certificates::Authority;
use modelless_testkit::front;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;

const HOST: &str = "127.0.0.1";

/// A server behind TLS, with its certificate for `name` from an authority of its own.
struct Encrypted {
    /// `HOST:PORT`.
    server: String,
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Encrypted {
    fn new(sign: impl FnOnce(&Authority) -> &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path()).unwrap();
        let name = sign(&authority);
        let server = front::before(strict().parse().unwrap(), &authority, name, &["http/1.1"]).unwrap();
        std::fs::write(folder.path().join("token"), TOKEN).unwrap();
        Self { server: server.to_string(), authority, folder }
    }

    fn usual() -> Self {
        Self::new(|authority| {
            authority.sign(HOST).unwrap();
            HOST
        })
    }

    /// What is known of it, with these certificates of authorities.
    fn known(&self, ca: Option<&Path>) -> (String, ServerFiles) {
        let token = Some(self.folder.path().join("token"));
        (self.server.clone(), ServerFiles { token, ca: ca.map(Path::to_owned) })
    }

    fn ca(&self) -> std::path::PathBuf {
        self.authority.folder().join("ca.pem")
    }
}

fn remote(url: &str, n: u32) -> LoadSpec {
    let artefact = at_peer(url, "echo", ", \"timeout_ms\": 10000");
    LoadSpec { artefact, settings: VariantSettings::new(Kind::Remote, "fp32", 8), ..spec(n, "echo.onnx") }
}

/// A server of something else, which says so to whatever comes.
fn plain() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map(Result::unwrap) {
            let _ = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    server
}

/// Why an engine that knows so much of it does not load from a server.
async fn refusal(of: &Encrypted, ca: Option<&Path>) -> String {
    let engine = engine_of(Kind::Remote, |config| config.servers = [of.known(ca)].into());
    refused(&engine, remote(&format!("https://{}", of.server), 1)).await
}

#[tokio::test]
async fn a_server_whose_certificate_is_believed_is_used_and_told_the_token_behind_it() {
    let of = Encrypted::usual();
    let engine = engine_of(Kind::Remote, |config| config.servers = [of.known(Some(&of.ca()))].into());
    engine.load(remote(&format!("https://{}", of.server), 1)).await.unwrap();
    // It answers every batch with who asked.
    let error = run(&engine, 1, 1, &[&[0; 16]]).await.unwrap_err();
    assert!(
        matches!(&error, BatchError::Unreachable(why) if why.contains("overloaded, Bearer ***")),
        "{error}"
    );
    // The same server in the clear hangs up on what is no TLS.
    let plain = refused(&engine, remote(&format!("http://{}", of.server), 2)).await;
    assert!(plain.contains("cannot be reached"), "{plain}");
}

#[tokio::test]
async fn a_server_that_is_not_proven_to_be_the_one_is_refused_with_what_to_do() {
    let of = Encrypted::usual();
    // Nobody vouches for it but an authority of which this machine knows nothing, or another one is named.
    let another = Encrypted::usual();
    for why in [refusal(&of, None).await, refusal(&of, Some(&another.ca())).await] {
        assert!(why.contains("`ca` under [remotes]"), "{why}");
    }
    let elsewhere = Encrypted::new(|authority| {
        authority.sign("models.example").unwrap();
        "models.example"
    });
    let why = refusal(&elsewhere, Some(&elsewhere.ca())).await;
    assert!(why.contains("is for") && why.contains("models.example") && why.contains(HOST), "{why}");
    let expired = Encrypted::new(|authority| {
        authority.sign_expired(HOST).unwrap();
        HOST
    });
    let why = refusal(&expired, Some(&expired.ca())).await;
    assert!(why.contains("its certificate has expired"), "{why}");
}

#[tokio::test]
async fn what_is_no_certificate_or_no_tls_is_named() {
    let of = Encrypted::usual();
    let file = of.folder.path().join("token");
    let why = refusal(&of, Some(&file)).await;
    assert!(why.contains("must be a PEM file") && why.contains("token"), "{why}");
    let why = refusal(&of, Some(Path::new("/nowhere/ca.pem"))).await;
    assert!(why.contains("/nowhere/ca.pem cannot be read"), "{why}");
    let plain = plain();
    let files = ServerFiles { token: None, ca: Some(of.ca()) };
    let engine = engine_of(Kind::Remote, |config| config.servers = [(plain.clone(), files)].into());
    let why = refused(&engine, remote(&format!("https://{plain}"), 1)).await;
    assert!(why.contains("does not speak TLS"), "{why}");
}
