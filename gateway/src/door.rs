//! A port that is knocked at: what is let in, and what is turned away for next to nothing.
//!
//! A connection that is accepted is not made known to the runtime before somebody lets it in. Who opens thousands of them, to have them turned
//! away, then costs an accept and a close each, and those who wait for the same thread are let through in between.

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream as Plain};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::yield_now;

/// How many may wait to be accepted. Whoever comes when these places are taken tries again after a second, so a burst of somebody else should
/// leave some.
const WAITING: u32 = 4096;
/// So many are turned away in a row before others get the thread: about a tenth of a millisecond.
const IN_A_ROW: u32 = 16;

/// Where connections come from.
#[derive(Debug)]
pub(crate) struct Door {
    listener: AsyncFd<std::net::TcpListener>,
    turned_away: u32,
}

/// Somebody who was accepted and not let in yet.
pub(crate) struct Caller {
    socket: Plain,
    pub(crate) from: SocketAddr,
}

impl Door {
    /// Binds a port at which more may wait than usual.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?; // what ended a moment ago keeps nobody from starting anew
        socket.bind(address)?;
        let listener = socket.listen(WAITING)?.into_std()?;
        // SAFETY: a listener has one descriptor, which is open until the listener is dropped, and it is never taken out.
        #[expect(
            unsafe_code,
            reason = "the safe form is deprecated, since not every type keeps its descriptor"
        )]
        let listener = unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) }?;
        Ok(Self { listener, turned_away: 0 })
    }

    /// Where it is (a port that was 0 is known now).
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.get_ref().local_addr()
    }

    /// The next caller. Nobody is lost where this is given up.
    pub(crate) async fn next(&self) -> io::Result<Caller> {
        self.listener.async_io(Interest::READABLE, accept).await
    }

    /// Closes without letting in, and tells why where there is something to say.
    pub(crate) async fn turn_away(&mut self, caller: Caller, why: Option<&str>) {
        match why {
            Some(why) => drop((&caller.socket).write(why.as_bytes())), // as far as that goes without waiting
            // Without the kernel's long goodbye, which it would remember for a minute. Fails only if it is closed already.
            None => drop(sockopt::set_socket_linger(&caller.socket, Some(Duration::ZERO))),
        }
        drop(caller);
        self.turned_away = (self.turned_away + 1) % IN_A_ROW;
        if self.turned_away == 0 {
            yield_now().await;
        }
    }
}

impl Caller {
    pub(crate) fn let_in(self) -> io::Result<TcpStream> {
        self.socket.set_nodelay(true)?;
        TcpStream::from_std(self.socket)
    }
}

fn accept(listener: &std::net::TcpListener) -> io::Result<Caller> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, from) = loop {
        match acceptfrom_with(listener, flags) {
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            other => break other?,
        }
    };
    let from = from.ok_or_else(|| io::Error::other("a connection from nowhere"))?;
    Ok(Caller { socket: Plain::from(socket), from: SocketAddr::try_from(from)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn door() -> (Door, SocketAddr) {
        let door = Door::open(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = door.address().unwrap();
        (door, address)
    }

    #[tokio::test]
    async fn who_is_let_in_is_heard_and_answered() {
        let (door, address) = door();
        let mut client = TcpStream::connect(address).await.unwrap();
        let caller = door.next().await.unwrap();
        assert_eq!(caller.from, client.local_addr().unwrap());
        let mut stream = caller.let_in().unwrap();
        assert!(stream.nodelay().unwrap());
        client.write_all(b"well").await.unwrap();
        let mut heard = [0; 4];
        stream.read_exact(&mut heard).await.unwrap();
        stream.write_all(&heard).await.unwrap();
        drop(stream);
        let mut all = String::new();
        client.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "well");
    }

    #[tokio::test]
    async fn who_is_turned_away_hears_why_or_nothing() {
        let (mut door, address) = door();
        let mut told = TcpStream::connect(address).await.unwrap();
        let caller = door.next().await.unwrap();
        door.turn_away(caller, Some("no")).await;
        let mut all = String::new();
        told.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "no");
        let mut reset = TcpStream::connect(address).await.unwrap();
        let caller = door.next().await.unwrap();
        door.turn_away(caller, None).await;
        assert_eq!(reset.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn others_get_the_thread_while_many_are_turned_away() {
        let (mut door, address) = door();
        let clients: Vec<_> = (0..4 * IN_A_ROW).map(|_| Plain::connect(address).unwrap()).collect();
        let (mut gone, turns) = (0, std::cell::Cell::new(0));
        let others = async {
            loop {
                turns.set(turns.get() + 1);
                yield_now().await;
            }
        };
        let turning_away = async {
            while gone < clients.len() {
                let caller = door.next().await.unwrap();
                door.turn_away(caller, None).await;
                gone += 1;
            }
        };
        tokio::select! {
            biased;
            () = turning_away => {}
            () = others => {}
        }
        assert!(turns.get() >= 3, "{} turns", turns.get());
    }

    #[tokio::test]
    async fn a_burst_waits_to_be_accepted() {
        let (door, address) = door();
        let most: usize =
            std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
        let many = most.min(2000); // more than the 1024 that a runtime asks for by itself
        // Each keeps its place when its client has gone. Without a place the first try comes to nothing, and the next is a second later.
        let patience = Duration::from_millis(900);
        for _ in 0..many {
            drop(Plain::connect_timeout(&address, patience).expect("a place to wait in"));
        }
        for _ in 0..many {
            drop(door.next().await.unwrap());
        }
    }
}
