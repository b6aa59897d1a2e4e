//! TLS in front of a server that does not speak it, for tests of whoever connects: what comes encrypted goes on in the clear.

use crate::certificates::Authority;
use anyhow::Result;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Listens until the process ends, shows the certificate that an authority signed for `name`, and passes on to `server`. Speaks one
/// of these protocols, if any is named.
pub fn before(
    server: SocketAddr,
    authority: &Authority,
    name: &str,
    protocols: &[&str],
) -> Result<SocketAddr> {
    let file = |kind: &str| authority.folder().join(format!("{name}.{kind}"));
    let chain = CertificateDer::pem_file_iter(file("pem"))?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(file("key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            // Whatever goes wrong on a connection, the other side sees that it ends.
            std::thread::spawn(move || pass(&near, server, config).is_ok());
        }
    });
    Ok(address)
}

fn pass(mut near: &TcpStream, server: SocketAddr, config: Arc<ServerConfig>) -> Result<()> {
    let mut session = ServerConnection::new(config)?;
    while session.is_handshaking() {
        // Also writes why it does not go on.
        session.complete_io(&mut near)?;
    }
    let far = TcpStream::connect(server)?;
    let session = Arc::new(Mutex::new(session));
    let back = {
        let (near, far, session) = (near.try_clone()?, far.try_clone()?, Arc::clone(&session));
        std::thread::spawn(move || answer(&near, &far, &session))
    };
    let passed = ask(near, &far, &session);
    far.shutdown(Shutdown::Write)?;
    let _ = back.join();
    passed
}

/// From the client to the server.
fn ask(mut near: &TcpStream, mut far: &TcpStream, session: &Mutex<ServerConnection>) -> Result<()> {
    let (mut raw, mut plain) = (vec![0; 1 << 14], Vec::new());
    loop {
        {
            let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
            // What came with the last of the greeting is there before anything is read.
            let _ = session.reader().read_to_end(&mut plain);
        }
        far.write_all(&plain)?;
        plain.clear();
        let count = near.read(&mut raw)?;
        if count == 0 {
            return Ok(());
        }
        let mut came = &raw[..count];
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        while !came.is_empty() {
            session.read_tls(&mut came)?;
            session.process_new_packets()?;
            // It keeps only so much that nobody has read.
            let _ = session.reader().read_to_end(&mut plain);
        }
    }
}

/// From the server to the client.
fn answer(mut near: &TcpStream, mut far: &TcpStream, session: &Mutex<ServerConnection>) -> Result<()> {
    let mut plain = vec![0; 1 << 14];
    loop {
        let count = far.read(&mut plain)?;
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        if count == 0 {
            session.send_close_notify();
        } else {
            session.writer().write_all(&plain[..count])?;
        }
        while session.wants_write() {
            session.write_tls(&mut near)?;
        }
        if count == 0 {
            near.shutdown(Shutdown::Both)?;
            return Ok(());
        }
    }
}
