//! A wire between two processes that can be cut: whatever connects to it is passed on to an address, until it is not.
//!
//! Three ways a network fails: [`Proxy::cut`] lets nothing through while both ends believe that they are connected, as a
//! dropped route does; [`Proxy::strand`] does so to what is connected and lets new connections pass, as a firewall does that
//! forgot them; [`Proxy::sever`] ends all connections and takes no new ones, as a reset does.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    to: Option<SocketAddr>,
    way: Way,
    /// Both ends of everything that is open, or was.
    open: Vec<TcpStream>,
    /// Connections that there have been.
    taken: u64,
    /// Of which so many, the first ones, let nothing through any longer.
    stranded: u64,
    over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Way {
    #[default]
    Open,
    Cut,
    Severed,
}

impl Proxy {
    /// Listens on a free loopback port. What connects waits until [`Proxy::lead`] says where to.
    pub fn start() -> Result<Self> {
        Self::start_on(Ipv4Addr::LOCALHOST)
    }

    /// The same on another address of this machine.
    pub fn start_on(address: Ipv4Addr) -> Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if accepting.lock().over {
                    return;
                }
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Ok(Self { address, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it leads from now on.
    pub fn lead(&self, to: SocketAddr) {
        self.shared.change(|state| state.to = Some(to));
    }

    /// Nothing passes any longer, and nobody is told.
    pub fn cut(&self) {
        self.shared.change(|state| state.way = Way::Cut);
    }

    /// Nothing passes any longer over what is connected, and nobody is told; what connects from now on is whole.
    pub fn strand(&self) {
        self.shared.change(|state| {
            state.stranded = state.taken;
            state.way = Way::Open;
        });
    }

    /// All connections end, and no new one comes to stand.
    pub fn sever(&self) {
        self.shared.change(|state| {
            state.way = Way::Severed;
            state.hang_up();
        });
    }

    /// It is whole again; what was held back passes.
    pub fn mend(&self) {
        self.shared.change(|state| state.way = Way::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.over = true;
            state.hang_up();
        });
        let _ = TcpStream::connect(self.address); // so that the one who accepts looks up
    }
}

impl State {
    fn hang_up(&mut self) {
        for stream in self.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, how: impl FnOnce(&mut State)) {
        how(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until something of a connection may pass; where to, or `None` if never.
    fn pass(&self, number: u64) -> Option<SocketAddr> {
        let mut state = self.lock();
        loop {
            match (state.over, state.way, state.to) {
                (true, ..) | (_, Way::Severed, _) => return None,
                (false, Way::Open, Some(to)) if number >= state.stranded => return Some(to),
                (false, Way::Open | Way::Cut, _) => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn serve(self: Arc<Self>, near: TcpStream) {
        let Ok(kept) = near.try_clone() else { return };
        let number = {
            let mut state = self.lock();
            state.open.push(kept);
            state.taken += 1;
            state.taken - 1
        };
        let far = self.pass(number).and_then(|to| TcpStream::connect(to).ok());
        let (Some(far), Ok(near_too)) = (far, near.try_clone()) else {
            let _ = near.shutdown(Shutdown::Both);
            return;
        };
        let (Ok(far_too), Ok(kept)) = (far.try_clone(), far.try_clone()) else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true)); // as the ends themselves have it
        self.lock().open.push(kept);
        let back = Arc::clone(&self);
        let way_back = std::thread::spawn(move || back.copy(number, far_too, near_too));
        self.copy(number, near, far);
        let _ = way_back.join();
    }

    fn copy(&self, number: u64, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut buffer).unwrap_or(0);
            // Held back while the wire is cut; its end, too.
            if self.pass(number).is_none() || read == 0 || to.write_all(&buffer[..read]).is_err() {
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A server that sends everything back.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while matches!(stream.read(&mut byte), Ok(1)) && stream.write_all(&byte).is_ok() {}
                });
            }
        });
        address
    }

    fn said(stream: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
        stream.write_all(&[byte])?;
        heard(stream)
    }

    fn heard(stream: &mut TcpStream) -> std::io::Result<u8> {
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    #[test]
    fn what_is_cut_is_held_back_and_what_is_severed_ends() {
        let proxy = Proxy::start().unwrap();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        proxy.lead(echo());
        assert_eq!(said(&mut stream, 1).unwrap(), 1);
        proxy.cut();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(said(&mut stream, 2).is_err(), "nothing passes");
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        proxy.mend();
        assert_eq!(heard(&mut stream).unwrap(), 2, "it was held back, not lost");
        proxy.strand();
        let mut new = TcpStream::connect(proxy.address()).unwrap();
        assert_eq!(said(&mut new, 6).unwrap(), 6);
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        proxy.mend();
        assert!(said(&mut stream, 7).is_err(), "what is stranded stays so");
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        proxy.sever();
        assert!(said(&mut stream, 3).is_err());
        let mut late = TcpStream::connect(proxy.address()).unwrap();
        assert!(said(&mut late, 4).is_err());
        proxy.mend();
        let mut again = TcpStream::connect(proxy.address()).unwrap();
        assert_eq!(said(&mut again, 5).unwrap(), 5);
    }
}
