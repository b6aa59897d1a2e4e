//! What people may want to do next, told once a server is ready: where it can be asked, and with what.

use crate::demo::Demo;
use modelless_gateway::Addresses;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Where commands ask without being told.
const USUAL: &str = "http://127.0.0.1:8080";

/// `locked` is whether a key is needed.
pub(super) fn lines(addresses: Addresses, demo: Option<&(Demo, PathBuf)>, locked: bool) -> String {
    let url = reachable(addresses);
    let server = if url == USUAL { String::new() } else { format!(" --server {url}") };
    let mut text = match demo {
        Some((demo, folder)) => demo.to_try(folder, &url, &server),
        None => format!("try: modelless task list{server}"),
    };
    if locked {
        text += "\n     with a key in MODELLESS_KEY; curl takes it as -H \"api-key: $MODELLESS_KEY\"";
    }
    if addresses.encrypted {
        text += "\n     with the server's name as its certificate has it, and with --ca FILE (curl: --cacert FILE) where this machine \
                 does not believe whom that comes from";
    }
    text
}

/// All addresses of a machine are none that can be asked.
fn reachable(addresses: Addresses) -> String {
    let Addresses { http, encrypted, .. } = addresses;
    match (http.ip().is_unspecified(), encrypted) {
        (true, true) => format!("https://localhost:{}", http.port()),
        (true, false) => {
            Addresses { http: SocketAddr::from((Ipv4Addr::LOCALHOST, http.port())), ..addresses }.url()
        }
        (false, _) => addresses.url(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(http: &str, encrypted: bool, locked: bool) -> String {
        lines(Addresses { http: http.parse().unwrap(), grpc: None, encrypted }, None, locked)
    }

    #[test]
    fn it_is_asked_where_it_can_be_asked_with_all_that_is_needed() {
        assert_eq!(told("127.0.0.1:8080", false, false), "try: modelless task list");
        assert_eq!(told("0.0.0.0:8080", false, false), "try: modelless task list");
        assert!(told("127.0.0.2:8080", false, false).ends_with(" --server http://127.0.0.2:8080"));
        let all = told("0.0.0.0:8320", true, true);
        for part in ["--server https://localhost:8320", "MODELLESS_KEY", "--ca FILE", "--cacert FILE"] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert!(!told("0.0.0.0:1", false, true).contains("--ca"));
    }
}
