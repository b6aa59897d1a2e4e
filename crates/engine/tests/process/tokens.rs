//! What a remote server is told of who asks: from a file of the node, to that server, and to nobody else.

use super::conformance::at_peer;
use super::*;
use modelless_engine::BatchError;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

pub(crate) const TOKEN: &str = "s3cret.token";

/// A server with one model, which gives its input back to whoever knows the token; who does not is told what he said.
pub(crate) fn strict() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map(Result::unwrap) {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

fn serve(mut stream: TcpStream) {
    let mut buffer = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let end = loop {
            if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read(&mut piece) {
                Ok(count @ 1..) => buffer.extend_from_slice(&piece[..count]),
                _ => return,
            }
        };
        let head = String::from_utf8(buffer.drain(..end).collect()).unwrap();
        let header = |name: &str| {
            let mut lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
            lines.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
        };
        let length = header("content-length").map_or(0, |length| length.parse().unwrap());
        while buffer.len() < length {
            let count = stream.read(&mut piece).unwrap();
            buffer.extend_from_slice(&piece[..count]);
        }
        buffer.drain(..length);
        let said = header("authorization").unwrap_or_default();
        let (status, body) = if said == format!("Bearer {TOKEN}") && head.contains("/infer") {
            let token = format!(r#"{{"error":"overloaded, {said}"}}"#);
            ("503 Busy", token)
        } else if said == format!("Bearer {TOKEN}") {
            let tensor = |name: &str| format!(r#"[{{"name":"{name}","datatype":"FP32","shape":[-1,4]}}]"#);
            ("200 OK", format!(r#"{{"inputs":{},"outputs":{}}}"#, tensor("x"), tensor("y")))
        } else {
            ("401 Unauthorized", format!(r#"{{"error":"who is {said}?"}}"#))
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

fn remote(server: &str, n: u32) -> LoadSpec {
    let artefact = at_peer(&format!("http://{server}"), "echo", ", \"timeout_ms\": 10000");
    let settings = VariantSettings::new(Kind::Remote, "fp32", 8);
    LoadSpec { artefact, settings, ..spec(n, "echo.onnx") }
}

#[tokio::test]
async fn a_server_is_shown_the_token_of_its_file_and_nobody_else_sees_it() {
    let server = strict();
    let none = engine_of(Kind::Remote, |_| {});
    let why = refused(&none, remote(&server, 1)).await;
    assert!(why.contains("status 401") && why.contains("give the node a token file"), "{why}");

    let mut file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_owned();
    let engine = engine_of(Kind::Remote, |config| {
        let files = ServerFiles { token: Some(path.clone()), ca: None };
        config.servers = [(server.clone(), files)].into();
    });
    let why = refused(&engine, remote(&server, 1)).await;
    assert!(why.contains("must hold one line"), "{why}");
    file.write_all(b"another\n").unwrap();
    let why = refused(&engine, remote(&server, 1)).await;
    assert!(why.contains("who is Bearer ***?") && why.contains("may be out of date"), "{why}");

    // The file is read with every load, so a new token needs no restart.
    std::fs::write(&path, TOKEN).unwrap();
    engine.load(remote(&server, 1)).await.unwrap();
    let error = run(&engine, 1, 1, &[&[0; 16]]).await.unwrap_err();
    assert!(
        matches!(&error, BatchError::Unreachable(why) if why.contains("overloaded, Bearer ***")),
        "{error}"
    );
    let pid = engine.runners()[0].pid.unwrap();
    for place in ["cmdline", "environ"] {
        let bytes = std::fs::read(format!("/proc/{pid}/{place}")).unwrap();
        assert!(!bytes.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes()), "{place}");
    }

    // Another server does not get it.
    let other = strict();
    let why = refused(&engine, remote(&other, 2)).await;
    assert!(why.contains("who is ?"), "{why}");
}
