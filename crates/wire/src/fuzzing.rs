//! What a fuzzer feeds this crate with, and what must hold whatever it feeds. Compiled by `cargo fuzz` and for this crate's own
//! tests, which feed it what the fuzzer has kept (`fuzz/corpus`); never into what runs.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a property that does not hold is to stop the fuzzer"
)]

use crate::codec::{self, Frame};
use crate::frame::{Encoded, HEADER, Header, Kind};
use crate::link::Link;
use crate::reader::{Came, Reader};
use crate::received::Received;
use crate::stream::Stream;
use bytes::Bytes as Buffer;
use modelless_types::{Bytes, Micros, Time};
use std::cell::RefCell;
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

/// What all connections of a process may hold here of frames that come in parts: little, so that a fuzzer gets to its end.
pub const RECEIVED: u64 = 256 << 10;

/// What a peer sends, from its first byte to the end of the connection, behind one byte that says how: whether it has greeted
/// already, and in what pieces its bytes arrive.
///
/// The same is read whether it comes at once or in pieces; every frame that is taken is written again as one that means the same;
/// and what was held of frames that never became whole is given back.
pub fn frames(data: &[u8]) {
    let Some((how, sent)) = data.split_first() else { return };
    // More than a socket takes at once would have to be written while it is read.
    let sent = &sent[..sent.len().min(32 << 10)];
    let greeted = how & 1 == 1;
    let whole = read(sent, greeted, usize::MAX);
    // No more than so many pieces, however much it is.
    let piece = (usize::from(how >> 1) + 1).max(sent.len() / 256);
    let pieces = read(sent, greeted, piece);
    assert_eq!(whole, pieces, "it depends on the pieces in which it comes");
}

/// What was read, in words.
#[derive(PartialEq, Debug)]
struct Heard {
    frames: Vec<String>,
    /// How it ended.
    lost: String,
    bytes: u64,
}

fn read(sent: &[u8], greeted: bool, piece: usize) -> Heard {
    thread_local! {
        static RUNTIME: RefCell<Runtime> = RefCell::new(Builder::new_current_thread().enable_all().build().unwrap());
    }
    RUNTIME.with_borrow(|runtime| runtime.block_on(converse(sent, greeted, piece)))
}

async fn converse(sent: &[u8], greeted: bool, piece: usize) -> Heard {
    let received = Received::new(Bytes(RECEIVED));
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    let mut reader = Reader::new(Link::new(Stream::Unix(ours)), Arc::clone(&received));
    if greeted {
        reader.greeted();
    }
    let mut frames = Vec::new();
    let mut pieces = sent.chunks(piece.min(sent.len().max(1)));
    let lost = loop {
        tokio::select! {
            biased;
            // All that can be read of what came is read before the next piece is sent.
            came = reader.next() => match came {
                Ok(came) => frames.push(came_to_be(&came)),
                Err(lost) => break lost.to_string(),
            },
            () = tokio::task::yield_now() => match pieces.next() {
                Some(piece) => theirs.write_all(piece).await.unwrap(),
                None => theirs.shutdown().await.unwrap(),
            },
        }
        assert!(received.held().0 <= RECEIVED, "more is held than may be");
    };
    let bytes = reader.heard();
    drop(reader);
    assert_eq!(received.held(), Bytes(0), "what is held of a connection outlives it");
    let bytes = if lost == crate::Lost::Closed.to_string() { bytes } else { 0 };
    Heard { frames, lost, bytes }
}

/// A frame in words, after a look at whether it can be said again.
fn came_to_be(came: &Came) -> String {
    let Came { frame, in_parts, dropped, .. } = came;
    let said = format!("{frame:?} {in_parts} {dropped:?}");
    let Some(again) = said_again(frame) else { return said };
    let first = bytes(&again);
    let header = Header::parse(first.first_chunk().unwrap()).expect("our own header");
    assert_eq!(
        first.len(),
        HEADER + header.head + header.payload,
        "a header tells other lengths than there are"
    );
    let (head, payload) = first[HEADER..].split_at(header.head);
    let heard = codec::decode(&header, head, Buffer::copy_from_slice(payload)).expect("our own frame");
    let second = bytes(&said_again(&heard).expect("it was said before"));
    assert_eq!(first, second, "{frame:?} means something else when it is said again");
    if header.kind != Kind::Status {
        // A status tells moments, which move with the clock of who reads it.
        assert_eq!(format!("{frame:?}"), format!("{heard:?}"));
    }
    said
}

/// The frame as this process would send it; `None` where it would be larger than what may be sent.
fn said_again(frame: &Frame) -> Option<Encoded> {
    let encoded = match frame {
        Frame::Hello(hello) => codec::hello(hello),
        Frame::Status(head) => codec::status(&head.as_ref().clone().at(Time(1), Micros(0)), Time(1)),
        Frame::Ping { sent, rtt } => codec::ping(*sent, *rtt),
        Frame::Pong { sent } => codec::pong(*sent),
        Frame::Goodbye(why) => codec::goodbye(why),
        Frame::Beat => codec::beat(),
        Frame::Proof(proof) => codec::proof(proof.clone()),
        Frame::Want(want) => codec::want(want.id, &want.sha256, want.offset),
        Frame::Piece(id, piece) => codec::piece(*id, piece.clone()),
        Frame::ToNode(frame) => codec::to_node(frame),
        Frame::FromNode(frame) => codec::from_node(frame),
    };
    encoded.ok()
}

fn bytes(encoded: &Encoded) -> Vec<u8> {
    [encoded.head.as_slice(), &encoded.payload[0], &encoded.payload[1]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_the_fuzzer_kept_breaks_the_reader() {
        modelless_testkit::corpus::replay("wire_frames", frames);
    }

    /// One file for each kind of frame, for the fuzzer to begin with: `MODELLESS_WRITE_SEEDS=1 cargo test -p modelless-wire seeds`.
    #[test]
    fn seeds_are_the_samples_of_every_kind() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/wire_frames");
        for (name, frame) in crate::tests::golden::samples() {
            let file = folder.join(name.replace(' ', "-"));
            let seed = [vec![1 | 40 << 1], bytes(&frame)].concat();
            if std::env::var_os("MODELLESS_WRITE_SEEDS").is_some() {
                std::fs::write(&file, &seed).unwrap();
            }
            assert_eq!(std::fs::read(&file).unwrap_or_default(), seed, "{name}: write the seeds again");
        }
    }

    #[test]
    fn what_a_peer_says_is_heard_whole_and_in_pieces() {
        let all: Vec<u8> =
            crate::tests::golden::samples().iter().flat_map(|(_, frame)| bytes(frame)).collect();
        let heard = read(&all, true, usize::MAX);
        assert!(heard.frames.len() > 20 && heard.lost == crate::Lost::Closed.to_string(), "{heard:?}");
        assert_eq!(read(&all, true, 7), heard);
    }
}
