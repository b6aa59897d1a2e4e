//! What executor and runner say to each other besides batches: rare, small, over a `SOCK_SEQPACKET` pair.
//!
//! One message is a version byte and JSON, with descriptors beside it. The executor asks, the runner answers once.

use crate::sandbox::Confinement;
use crate::seam::Io;
use crate::slot::Stretch;
use modelless_types::{TensorSpec, VariantSettings};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Lanes of a runner, and so descriptors beside one message, are at most this many.
pub const MAX_LANES: u16 = 64;

/// Raised with every change: a runner that is a binary of its own may be an older one.
const VERSION: u8 = 6;
const MAX_MESSAGE: usize = 64 << 10;
/// What is too large for a message comes along as a file of at most so many bytes: certificates, a few hundred thousand.
pub(crate) const MAX_BESIDE: u64 = 4 << 20;
/// Tokens are a few hundred characters, signed ones a few thousand.
const MAX_SECRET: usize = 16 << 10;

/// Something that is sent to where it belongs and shown to nobody.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// From a file: one line, without blanks.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let wrong = |why: String| format!("the token file {} {why}", path.display());
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let text = text.trim();
        if text.is_empty() || text.len() > MAX_SECRET || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let why = format!("must hold one line of at most {MAX_SECRET} characters, without blanks");
            return Err(wrong(why));
        }
        Ok(Self(text.to_owned()))
    }

    #[cfg(test)]
    pub(crate) fn test(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// As a header of HTTP says it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// A text without it.
    pub(crate) fn hidden_in(&self, text: &str) -> String {
        text.replace(&self.0, "***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How far a load gives way to what is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Gently {
    /// Not at all.
    Not,
    /// It gets a tenth of a core that somebody else wants. For loading into a runner that serves: they share locks, and
    /// one that got no time at all might hold one.
    Nice,
    /// It gets what nobody else wants.
    Idle,
}

/// What the executor asks of a runner.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Ask {
    /// Serve lane `lane`, whose ring comes along.
    OpenLane { lane: u16 },
    /// Make the model that comes along runnable on lanes `0..lanes`. Behind it come the certificates of whom to believe who a
    /// remote server is, where that is asked for.
    Load {
        variant: u32,
        settings: VariantSettings,
        lanes: u16,
        expect: Option<Io>,
        shown: bool,
        gently: Gently,
        /// What it says to its server who asks, where it is a remote one.
        token: Option<Secret>,
    },
    /// Its slots, one arena for each lane, for batches of up to `rows`.
    Attach { variant: u32, rows: u32, slot_bytes: usize },
    /// Forget it.
    Unload { variant: u32 },
}

/// What the runner answers.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Say {
    /// Said once, unasked, when the library is loaded and the process is confined.
    /// `gives_way`: whether it can load without getting in the way of what is served.
    Hello { version: String, confinement: Confinement, gives_way: bool },
    /// Done.
    Done,
    /// Loaded.
    Loaded {
        inputs: Vec<TensorSpec>,
        outputs: Vec<TensorSpec>,
        fixed_batch: Option<u32>,
        stretch: Option<Stretch>,
        device: String,
    },
    /// Not done, and the runner is as it was. In place of `Hello`: it cannot work at all, and ends.
    Failed { why: String },
}

/// Both ends of a control connection.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message with descriptors.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    transmit(socket, message, fds, SendFlags::NOSIGNAL)
}

/// The same, but never waits: an other side that does not read what it is sent is an error.
pub(crate) fn send_now<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    transmit(socket, message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn transmit<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut bytes = vec![VERSION];
    serde_json::to_writer(&mut bytes, message)?;
    if bytes.len() > MAX_MESSAGE || fds.len() > usize::from(MAX_LANES) {
        return Err(io::Error::other("a control message is too large"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LANES as usize))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one control message"));
    }
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()).map_err(Into::into),
        }
    }
}

/// Receives one message with its descriptors; `None` when the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LANES as usize))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut iov = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(&socket, &mut iov, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::other("a control message was cut off"));
    }
    match bytes[..received.bytes].split_first() {
        Some((&VERSION, json)) => Ok(Some((serde_json::from_slice(json)?, fds))),
        _ => Err(io::Error::other("a control message of another version")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (a, b) = pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"model").unwrap();
        file.rewind().unwrap();
        send(&a, &Ask::Unload { variant: 3 }, &[file.as_fd(), file.as_fd()]).unwrap();
        let (ask, fds) = receive::<Ask>(&b).unwrap().unwrap();
        assert!(matches!(ask, Ask::Unload { variant: 3 }));
        assert_eq!(fds.len(), 2);
        let mut text = String::new();
        std::fs::File::from(fds.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "model");
        drop(a);
        assert!(receive::<Ask>(&b).unwrap().is_none());
    }

    #[test]
    fn refuses_another_version_and_what_is_no_message() {
        let (a, b) = pair().unwrap();
        for bytes in [&b"\x01\"Done\""[..], b"\x06{", b"\x06\"Nothing\""] {
            rustix::io::write(&a, bytes).unwrap();
            assert!(receive::<Say>(&b).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_secret_is_read_from_its_file_and_shown_to_nobody() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"abc.def\n").unwrap();
        let secret = Secret::read(file.path()).unwrap();
        assert_eq!(secret.header(), "Bearer abc.def");
        assert_eq!(secret.hidden_in("no abc.def here"), "no *** here");
        assert_eq!(format!("{:?}", Some(&secret)), "Some(***)");
        file.write_all(b"second line").unwrap();
        let why = Secret::read(file.path()).unwrap_err();
        assert!(why.contains("one line") && !why.contains("abc"), "{why}");
        assert!(Secret::read(Path::new("/nowhere/token")).unwrap_err().contains("/nowhere/token"));
    }
}
