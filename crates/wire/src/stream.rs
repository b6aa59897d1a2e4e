//! Sockets, as connections use them: bytes in, bytes out, never waiting inside a call.

use crate::tls::{TlsAccept, TlsConnect, TlsStream};
use bytes::BufMut;
use socket2::SockRef;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// What the kernel keeps of what is not on its way yet. More would stand in front of every small frame on a slow way.
const UNSENT: u32 = 128 << 10;

/// Where a node listens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    /// Host and port, such as `10.0.0.7:7400`.
    Tcp(String),
    /// A socket in the file system, for one host.
    Unix(PathBuf),
    /// A network that is simulated.
    #[cfg(test)]
    Sim(crate::sim::Host),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            #[cfg(test)]
            Self::Sim(host) => write!(f, "{host:?}"),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("`unix:` needs the path of a socket, such as `unix:/run/modelless/node.sock`".into())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
        match port.map(str::parse::<u16>) {
            Some(Ok(_)) => Ok(Self::Tcp(text.to_owned())),
            _ => Err(format!("`{text}` is no address; expected `host:port` or `unix:/path`")),
        }
    }
}

/// A bound socket that gateways connect to.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
    #[cfg(test)]
    Sim(crate::sim::Listening),
}

impl Listener {
    /// Binds. A Unix socket that nobody listens on any longer is replaced.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let socket = TcpListener::bind(address).await?;
                let address = Address::Tcp(socket.local_addr()?.to_string());
                Ok(Self { socket: Socket::Tcp(socket), address })
            }
            Address::Unix(path) => {
                let socket = match UnixListener::bind(path) {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                        if UnixStream::connect(path).await.is_ok() {
                            return Err(error);
                        }
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    other => other?,
                };
                Ok(Self { socket: Socket::Unix(socket), address: address.clone() })
            }
            #[cfg(test)]
            Address::Sim(host) => Ok(Self { socket: Socket::Sim(host.listen()), address: address.clone() }),
        }
    }

    /// Where it really listens (a port that was 0 is known now).
    pub fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) async fn accept(&self) -> io::Result<(Stream, String)> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, from): (_, SocketAddr) = socket.accept().await?;
                tune(&stream)?;
                Ok((Stream::Tcp(stream), from.to_string()))
            }
            Socket::Unix(socket) => Ok((Stream::Unix(socket.accept().await?.0), self.address.to_string())),
            #[cfg(test)]
            Socket::Sim(socket) => Ok((Stream::Sim(socket.accept().await), "sim".into())),
        }
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?; // a small frame must not wait for the answer to the one before
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT)
}

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
    Unix(UnixStream),
    #[cfg(test)]
    Sim(crate::sim::End),
}

impl Stream {
    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                tune(&stream)?;
                Ok(Self::Tcp(stream))
            }
            Address::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            #[cfg(test)]
            Address::Sim(host) => host.connect().await.map(Self::Sim),
        }
    }

    /// The same encrypted, if it is TCP and that is wanted: what stays on one host goes as it is.
    pub(crate) async fn connect_over(self, address: &Address, tls: Option<&TlsConnect>) -> io::Result<Self> {
        match (self, tls) {
            (Self::Tcp(socket), Some(tls)) => {
                Ok(Self::Tls(Box::new(TlsStream::connect(socket, address, tls).await?)))
            }
            (stream, _) => Ok(stream),
        }
    }

    /// The same on the other side.
    pub(crate) async fn accept_over(self, tls: Option<&TlsAccept>) -> io::Result<Self> {
        match (self, tls) {
            (Self::Tcp(socket), Some(tls)) => Ok(Self::Tls(Box::new(TlsStream::accept(socket, tls).await?))),
            (stream, _) => Ok(stream),
        }
    }

    /// The host names in the certificate that the other side showed, where it did.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        match self {
            Self::Tls(stream) => stream.names(),
            Self::Tcp(_) | Self::Unix(_) => None,
            #[cfg(test)]
            Self::Sim(_) => None,
        }
    }

    /// Whether it is encrypted and both sides remembered each other.
    #[cfg(test)]
    pub(crate) fn is_resumed(&self) -> bool {
        match self {
            Self::Tls(stream) => stream.is_resumed(),
            Self::Tcp(_) | Self::Unix(_) | Self::Sim(_) => false,
        }
    }

    /// Whether all is written that was taken: what is encrypted may still wait.
    pub(crate) fn try_flush(&self) -> io::Result<bool> {
        match self {
            Self::Tls(stream) => stream.try_flush(),
            Self::Tcp(_) | Self::Unix(_) => Ok(true),
            #[cfg(test)]
            Self::Sim(_) => Ok(true),
        }
    }

    /// Writes what goes at once; `WouldBlock` if nothing does.
    pub(crate) fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(parts),
            Self::Tls(stream) => stream.try_write(parts),
            Self::Unix(stream) => stream.try_write_vectored(parts),
            #[cfg(test)]
            Self::Sim(stream) => stream.try_write(parts),
        }
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Tls(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
            #[cfg(test)]
            Self::Sim(stream) => stream.writable().await,
        }
    }

    /// Reads into the free room of `into`, of which there must be some (a full buffer would grow); 0 at the end.
    pub(crate) async fn read(&self, into: &mut impl BufMut) -> io::Result<usize> {
        loop {
            let read = match self {
                Self::Tls(stream) => return stream.read(into).await,
                Self::Tcp(stream) => {
                    stream.readable().await?;
                    stream.try_read_buf(into)
                }
                Self::Unix(stream) => {
                    stream.readable().await?;
                    stream.try_read_buf(into)
                }
                #[cfg(test)]
                Self::Sim(stream) => {
                    stream.readable().await;
                    stream.try_read(into)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    /// Ends both directions, also for whoever waits on them elsewhere.
    pub(crate) fn shut(&self) {
        use rustix::net::{Shutdown, shutdown};
        // It may be closed already, which is what is wanted.
        let _ = match self {
            Self::Tcp(stream) => shutdown(stream, Shutdown::Both),
            Self::Tls(stream) => shutdown(stream.socket(), Shutdown::Both),
            Self::Unix(stream) => shutdown(stream, Shutdown::Both),
            #[cfg(test)]
            Self::Sim(stream) => {
                stream.shut();
                Ok(())
            }
        };
    }
}
