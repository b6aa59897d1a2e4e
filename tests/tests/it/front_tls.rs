//! TLS towards clients, as users set it up: a real server with certificates, our commands, our Python package, and clients of others.

use crate::clients::all_calls_with;
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Server, certificates, temp_dir};
use std::path::Path;
use std::process::{Command, Output};

/// `modelless task list` with these options.
fn list(server: &Server, options: &[&str]) -> Result<Output> {
    let url = server.url();
    let args = [&["task", "list", "--json", "--server", &url][..], options].concat();
    Ok(Command::new(server.binary()).args(args).output()?)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn commands_and_python_ask_by_tls_and_say_why_they_do_not_trust_or_are_not_trusted() -> Result<()> {
    let folder = temp_dir("tls")?;
    certificates::write(folder.path(), &["127.0.0.1", "a-client"])?;
    let other = temp_dir("other")?;
    certificates::write(other.path(), &["a-client"])?;
    let file =
        |of: &Path, name: &str| of.join(name).to_str().map(str::to_owned).context("a path that is text");
    let (ca, wrong_ca) = (file(folder.path(), "ca.pem")?, file(other.path(), "ca.pem")?);
    let (cert, key) = (file(folder.path(), "127.0.0.1.pem")?, file(folder.path(), "127.0.0.1.key")?);
    let shown = [file(folder.path(), "a-client.pem")?, file(folder.path(), "a-client.key")?];
    let strange = [file(other.path(), "a-client.pem")?, file(other.path(), "a-client.key")?];
    let server = Server::start(&[
        "--grpc",
        "127.0.0.1:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ])?;
    ensure!(server.url().starts_with("https://"), "{}", server.url());

    let shows =
        |pair: &[String; 2]| ["--cert".to_owned(), pair[0].clone(), "--cert-key".to_owned(), pair[1].clone()];
    let (ours, theirs) = (shows(&shown), shows(&strange));
    let with = |ca: &str, pair: &[String]| -> Result<Output> {
        let pair: Vec<&str> = pair.iter().map(String::as_str).collect();
        list(&server, &[&["--ca", ca][..], &pair].concat())
    };
    let good = with(&ca, &ours)?;
    ensure!(good.status.success(), "{}", said(&good));
    for (ca, pair, told) in [
        (wrong_ca.as_str(), &ours[..], "--ca FILE names whom to believe"),
        (&ca, &[][..], "--cert"),
        (&ca, &theirs[..], "does not accept the certificate"),
    ] {
        let refused = with(ca, pair)?;
        ensure!(!refused.status.success() && said(&refused).contains(told), "{told}: {}", said(&refused));
    }

    let folder = file(folder.path(), "")?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/src");
    all_calls_with("tls.py", &[&server.url(), &server.told("grpc ")?, &folder, source], 6)?;
    server.stop()
}
