//! Who is at the other end of a connection: the user of this machine whose process opened it, as the kernel's table of sockets says.
//!
//! A server that opens what a client names would else lend its own rights to whoever asks: one that runs as root could be had to read
//! and write any object there is. So a region's object must belong to the user who asks for it.

use crate::errors::ApiError;
use http::StatusCode;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::TcpStream;

/// The kernel's word for a connection that stands. Others may have lost their process, and then have no user but 0.
const ESTABLISHED: &str = "01";
/// Whom the kernel names where it has no name for a user in here: that may be several.
const NOBODY: u32 = 65_534;

/// Both ends of a connection, as this end sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    peer: SocketAddr,
    own: SocketAddr,
}

impl Ends {
    pub(crate) fn of(stream: &TcpStream) -> Option<Self> {
        Some(Self { peer: stream.peer_addr().ok()?, own: stream.local_addr().ok()? })
    }

    /// Whose process opened it, if that runs on this machine. Reads the table of all sockets, which may be long.
    pub(crate) fn user(&self) -> Result<u32, ApiError> {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let Ok(file) = File::open(table) else { continue };
            let mut lines = BufReader::new(file).lines().map_while(Result::ok).skip(1);
            if let Some(user) = lines.find_map(|line| self.user_of(&line)) {
                return if user == NOBODY { Err(stranger()) } else { Ok(user) };
            }
        }
        Err(stranger())
    }

    /// The user of a line that is of the other end of this connection.
    fn user_of(&self, line: &str) -> Option<u32> {
        // sl, local address, remote address, state, queues, timer, retransmits, user, timeout, inode.
        let cells: Vec<&str> = line.split_ascii_whitespace().take(10).collect();
        let &[_, local, remote, ESTABLISHED, _, _, _, user, _, inode] = cells.as_slice() else { return None };
        let same = |shown: &str, end: SocketAddr| {
            address(shown).is_some_and(|shown| shown == (end.ip().to_canonical(), end.port()))
        };
        let its = inode != "0" && same(local, self.peer) && same(remote, self.own);
        if its { user.parse().ok() } else { None }
    }
}

/// `0100007F:1F90`: words of 32 bits as this machine stores them, and the port.
fn address(shown: &str) -> Option<(IpAddr, u16)> {
    let (host, port) = shown.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(host.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match host.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some((ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

/// The refusal of whoever is not on this machine.
pub(super) fn stranger() -> ApiError {
    let message = "regions are for clients on this machine, and this connection is of no user of it";
    ApiError::new(StatusCode::FORBIDDEN, "not_of_this_machine", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn connection(address: &str) -> (TcpStream, Ends) {
        let listener = TcpListener::bind(address).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (served, _) = listener.accept().await.unwrap();
        let ends = Ends::of(&served).unwrap();
        drop(served);
        (client, ends)
    }

    #[tokio::test]
    async fn the_other_end_is_the_user_who_opened_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (served, _) = listener.accept().await.unwrap();
        let ends = Ends::of(&served).unwrap();
        assert_eq!(ends.user(), Ok(rustix::process::getuid().as_raw()));
        // One that is closed is nobody's: what is left of it in the kernel has no user, which is written as 0.
        drop(client);
        assert!(ends.user().is_err());
    }

    #[tokio::test]
    async fn connections_by_ipv6_are_found_as_well() {
        if std::net::TcpListener::bind("[::1]:0").is_err() {
            return; // a machine without it
        }
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (served, _) = listener.accept().await.unwrap();
        assert!(Ends::of(&served).unwrap().user().is_ok());
    }

    #[tokio::test]
    async fn whoever_is_not_on_this_machine_has_no_user() {
        let (_client, ends) = connection("127.0.0.1:0").await;
        let elsewhere = Ends { peer: "203.0.113.7:4000".parse().unwrap(), ..ends };
        assert_eq!(elsewhere.user().unwrap_err().reason, "not_of_this_machine");
    }

    #[test]
    fn lines_of_other_connections_and_of_orphans_are_passed_over() {
        let (peer, own) = ("127.0.0.1:4000".parse().unwrap(), "127.0.0.1:8080".parse().unwrap());
        let ends = Ends { peer, own };
        let line = |local: &str, remote: &str, state: &str, user: &str, inode: &str| {
            format!(" 1: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {user} 0 {inode} 1")
        };
        let word = if cfg!(target_endian = "little") { "0100007F" } else { "7F000001" };
        let (here, there) = (format!("{word}:0FA0"), format!("{word}:1F90"));
        assert_eq!(ends.user_of(&line(&here, &there, "01", "1000", "77")), Some(1000));
        assert_eq!(ends.user_of(&line(&here, &there, "06", "0", "0")), None, "it waits for its end");
        assert_eq!(ends.user_of(&line(&here, &there, "01", "0", "0")), None, "it has lost its process");
        assert_eq!(ends.user_of(&line(&there, &here, "01", "1000", "77")), None, "our own end of it");
        let mapped = format!(
            "0000000000000000{}{word}:0FA0",
            if word.starts_with('0') { "FFFF0000" } else { "0000FFFF" }
        );
        assert_eq!(ends.user_of(&line(&mapped, &there, "01", "7", "77")), Some(7));
        assert_eq!(ends.user_of("nonsense"), None);
    }
}
