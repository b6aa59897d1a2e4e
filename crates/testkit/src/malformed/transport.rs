//! What is no HTTP, or lies about itself. The server may answer 4xx or hang up.

use super::{Base, Case, Kind};
use crate::Rng;

pub(super) fn case(bases: &[Base], rng: &mut Rng) -> Option<Case> {
    let base = rng.pick(bases).clone();
    let (class, (what, bytes)) = match rng.below(9) {
        0 => ("transport: random bytes", random_bytes(rng)),
        1 => ("transport: huge head", huge_head(&base, rng)),
        2 => ("transport: first line", bad_start_line(&base, rng)),
        3 => ("transport: header", bad_header(&base, rng)),
        4 => ("transport: content-length that is none", bad_length(&base, rng)?),
        5 => ("transport: content-length of another body", wrong_length(&base, rng)?),
        6 => ("transport: chunks", bad_chunks(&base, rng)?),
        7 => ("transport: cut", cut(&base, rng)),
        _ => {
            // Something malformed first, then garbage in the same write.
            let (what, mut bytes) = bad_start_line(&base, rng);
            bytes.extend(rng.bytes(500));
            ("transport: pipelined garbage", (format!("{what}, then pipelined garbage"), bytes))
        }
    };
    // All of these leave a server free to wait for more, so our side ends here.
    Some(Case { kind: Kind::Transport, class, what: format!("{}: {what}", base.name()), bytes, finish: true })
}

fn random_bytes(rng: &mut Rng) -> (String, Vec<u8>) {
    let len = 1 + rng.below(4_000);
    (format!("{len} random bytes"), rng.bytes(len))
}

fn huge_head(base: &Base, rng: &mut Rng) -> (String, Vec<u8>) {
    match rng.below(3) {
        0 => {
            let size = (512 << 10) + rng.below(1 << 20);
            let request = base.to_request("").header("x-huge", "a".repeat(size));
            (format!("a header of {size} bytes"), base.complete(request))
        }
        1 => {
            let count = 2_000 + rng.below(5_000);
            let mut request = base.to_request("");
            for number in 0..count {
                request = request.header(&format!("x-{number}"), "1");
            }
            (format!("{count} headers"), base.complete(request))
        }
        _ => {
            let size = (512 << 10) + rng.below(1 << 20);
            (format!("a query string of {size} bytes"), base.complete(base.to_request(&"q".repeat(size))))
        }
    }
}

fn bad_start_line(base: &Base, rng: &mut Rng) -> (String, Vec<u8>) {
    let (method, path) = (&base.operation.method, &base.path);
    let line = rng
        .pick(&[
            format!("{method} {path} HTTP/9.9"),
            format!("{method} {path} HTTP/2.0"),
            format!("{method} {path} HTPT/1.1"),
            format!("{method} {path} x y HTTP/1.1"),
            format!("{method}\u{0} {path} HTTP/1.1"),
            format!("G\u{eb}T {path} HTTP/1.1"),
            format!("{method} {path}\u{7f}\u{1} HTTP/1.1"),
            "GET".to_owned(),
            " ".to_owned(),
        ])
        .clone();
    (format!("the first line {line:?}"), format!("{line}\r\nhost: modelless\r\n\r\n").into_bytes())
}

fn bad_header(base: &Base, rng: &mut Rng) -> (String, Vec<u8>) {
    let header: &[u8] = rng.pick::<&[u8]>(&[
        b"no colon here",
        b": no name",
        b"na me: x",
        b"x-nul: a\0b",
        b"x-control: \x01\x02",
        b"x\xff\xfe: y",
        b"(x): y",
    ]);
    let mut bytes = base.to_request("").to_bytes();
    bytes.truncate(bytes.len() - 2);
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(b"\r\n\r\n");
    (format!("the header {:?}", String::from_utf8_lossy(header)), bytes)
}

/// A `content-length` that is no length.
fn bad_length(base: &Base, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    base.media.as_ref()?;
    let length = *rng.pick(&["-1", "abc", "1e3", "0x10", "18446744073709551616", "9 9", "1;2", "+5x"]);
    let request = base.to_request("").header("content-length", length).body_as_is(base.body.clone());
    Some((format!("content-length {length:?}"), request.to_bytes()))
}

/// A `content-length` that is not the body's: more than comes, or less, so that the rest is no request.
fn wrong_length(base: &Base, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    base.media.as_ref()?;
    let right = base.body.len();
    let told = match rng.below(3) {
        0 => right + 1 + rng.below(10_000),
        1 => 99_999_999_999_999,
        // Less than half: a picture that lacks its last bytes alone may still be one.
        _ if right > 0 => rng.below(right.div_ceil(2)),
        _ => return None,
    };
    let request =
        base.to_request("").header("content-length", told.to_string()).body_as_is(base.body.clone());
    Some((format!("content-length {told} for {right} bytes"), request.to_bytes()))
}

fn bad_chunks(base: &Base, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    base.media.as_ref()?;
    let chunk = *rng.pick(&[
        "zz\r\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc\r\n",
        "3\r\nabcdef\r\n0\r\n\r\n",
        "3\r\nab",
    ]);
    let request = base.to_request("").header("transfer-encoding", "chunked").body_as_is(chunk);
    Some((format!("the chunk {chunk:?}"), request.to_bytes()))
}

/// A valid request that ends in the middle.
fn cut(base: &Base, rng: &mut Rng) -> (String, Vec<u8>) {
    let mut bytes = base.complete(base.to_request(""));
    let at = rng.below(bytes.len());
    bytes.truncate(at);
    (format!("cut after {at} bytes"), bytes)
}
