//! One client that asks over one kept connection, one query at a time.
//!
//! `http-loop ADDRESS[,ADDRESS...] TARGET FLOATS SEED [CA]`, then blocks as in `modelless_testkit::blocks`. Several addresses are asked
//! in turns, each over a connection of its own; by TLS, where the file of an authority is given. The body is that many random `f32`; a round is the whole request out and the last byte of its answer in (taking it apart is the client's own
//! affair and not timed), and anything but 200 ends it.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use anyhow::{Result, ensure};
use modelless_testkit::{Connection, Request, Rng, blocks};
use std::path::Path;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ([addresses, target, floats, seed], authority) = (match args.as_slice() {
        [first @ .., authority] if args.len() == 5 => (first, Some(Path::new(authority))),
        all => (all, None),
    }) else {
        anyhow::bail!("usage: http-loop ADDRESS[,ADDRESS...] TARGET FLOATS SEED [CA]");
    };
    let mut rng = Rng::new(seed.parse()?);
    let body: Vec<u8> = (0..floats.parse::<usize>()?).flat_map(|_| rng.unit_f32().to_le_bytes()).collect();
    let request =
        Request::post(target).header("content-type", "application/octet-stream").body(body).to_bytes();
    let open = |address: &str| match authority {
        Some(authority) => Connection::open_tls(address.parse()?, authority),
        None => Connection::open(address.parse()?),
    };
    let mut connections = addresses.split(',').map(open).collect::<Result<Vec<_>>>()?;
    let mut turn = 0;
    blocks::serve(|| {
        turn = (turn + 1) % connections.len();
        let answer = connections[turn].exchange_whole(&request)?;
        ensure!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(answer));
        Ok(())
    })
}
