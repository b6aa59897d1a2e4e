//! Connections that are encrypted, and those that come to nothing with words for people.

use super::{Kept, Served, config, dial, query, raw};
use crate::gateway::greet;
use crate::{Address, Config, Dial, RoleNames, TlsFiles, ToNode};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SanType,
    date_time_ymd,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Somebody whose signatures are believed, with a folder of files.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "a cluster");
        let key = KeyPair::generate().expect("a key");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.pem"), params.self_signed(&key).expect("signed").pem())
            .expect("written");
        Self { folder, issuer: Issuer::new(params, key) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate for such a name, with its key.
    fn signs(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsFiles {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        let (cert, own) = (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        fs::write(&cert, signed.pem()).expect("written");
        fs::write(&own, key.serialize_pem()).expect("written");
        TlsFiles { cert: Some(cert), key: Some(own), ..self.only_believes() }
    }

    fn only_believes(&self) -> TlsFiles {
        TlsFiles { ca: Some(self.file("ca.pem")), ..TlsFiles::default() }
    }
}

fn with(accepts: &TlsFiles, connects: &TlsFiles) -> Config {
    let accept = accepts.accept().expect("files that can be used");
    let connect = connects.connect().expect("files that can be used");
    Config { accept, connect, ..config() }
}

/// Both sides show a certificate.
pub(super) fn encrypted() -> Config {
    let authority = Authority::new();
    let both = |params: &mut CertificateParams| {
        let name = "modelless-scheduler".try_into().expect("a name");
        params.subject_alt_names.push(SanType::DnsName(name));
    };
    with(&authority.signs("127.0.0.1", |_| {}), &authority.signs("modelless-gateway", both))
}

async fn served(files: &TlsFiles) -> Served {
    let accept = files.accept().expect("files that can be used");
    Served::start(&Address::Tcp("127.0.0.1:0".into()), Config { accept, ..config() }).await
}

/// Why nobody was let in.
async fn why(served: &Served, connects: &TlsFiles) -> String {
    let connect = connects.connect().expect("files that can be used");
    let dial = Dial { config: Config { connect, ..config() }, ..dial(&served.address) };
    greet(&dial, None).await.err().expect("it is not let in").to_string()
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_told_in_words() {
    let (authority, other) = (Authority::new(), Authority::new());
    let wrong_name = authority.signs("elsewhere.example", |_| {});
    let expired = authority.signs("127.0.0.1", |params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    let expired_node = served(&expired).await;
    let refused = why(&expired_node, &authority.only_believes()).await;
    assert!(refused.contains("has expired"), "{refused}");
    expired_node.stop().await;

    let misnamed = served(&TlsFiles { ca: None, ..wrong_name }).await;
    let refused = why(&misnamed, &authority.only_believes()).await;
    assert!(
        refused.contains("not for `127.0.0.1` but for") && refused.contains("elsewhere.example"),
        "{refused}"
    );
    assert!(refused.contains("tls.name"), "what to do: {refused}");
    let named = TlsFiles { name: Some("elsewhere.example".into()), ..authority.only_believes() };
    let config = Config { connect: named.connect().expect("a name"), ..config() };
    let kept = Kept::start(Dial { config, ..dial(&misnamed.address) });
    kept.connection(0).await;
    kept.stop().await;

    let refused = why(&misnamed, &other.only_believes()).await;
    assert!(refused.contains("does not come from whom `tls.ca` names"), "{refused}");
    misnamed.stop().await;
}

#[tokio::test]
async fn who_shows_no_certificate_or_a_strangers_is_turned_away_where_one_is_asked_for() {
    let (authority, other) = (Authority::new(), Authority::new());
    let served = served(&authority.signs("127.0.0.1", |_| {})).await;
    let refused = why(&served, &authority.only_believes()).await;
    assert!(refused.contains("wants a certificate") && refused.contains("tls.cert"), "{refused}");
    let stranger =
        TlsFiles { ca: Some(authority.file("ca.pem")), ..other.signs("modelless-gateway", |_| {}) };
    let refused = why(&served, &stranger).await;
    assert!(refused.contains("does not accept this one's certificate"), "{refused}");
    assert!(served.node.told.all().is_empty());

    let known = authority.signs("modelless-gateway", |_| {}).connect().expect("files that can be used");
    let kept = Kept::start(Dial { config: Config { connect: known, ..config() }, ..dial(&served.address) });
    let (_, link) = kept.connection(0).await;
    link.send(ToNode::Query(Box::new(query(1, raw("x")))));
    assert_eq!(served.node.query(0).await.input, raw("x"));
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn a_certificate_of_the_authority_is_not_enough_to_be_a_gateway_or_a_scheduler() {
    let authority = Authority::new();
    let served = served(&authority.signs("127.0.0.1", |_| {})).await;
    for name in ["a-printer", "modelless-scheduler"] {
        let refused = why(&served, &authority.signs(name, |_| {})).await;
        let named = refused.contains(&format!("its certificate is for {name}, and a gateway needs one for"));
        assert!(named && refused.contains("tls.roles.gateways"), "{refused}");
    }
    let gateway = authority.signs("modelless-gateway.prod.example", |_| {});
    let connect = || gateway.connect().expect("files that can be used");
    let as_scheduler =
        Dial { queries: false, config: Config { connect: connect(), ..config() }, ..dial(&served.address) };
    let refused = greet(&as_scheduler, None).await.err().expect("it is not let in").to_string();
    assert!(refused.contains("a scheduler needs one for modelless-scheduler"), "{refused}");
    assert!(served.node.told.all().is_empty());
    let kept =
        Kept::start(Dial { config: Config { connect: connect(), ..config() }, ..dial(&served.address) });
    kept.connection(0).await;
    kept.stop().await;
    served.stop().await;
    // Where a company's certificates have other names, these are set.
    let files = authority.signs("127.0.0.1", |_| {});
    let roles = RoleNames { gateways: vec!["a-printer".into()], ..RoleNames::default() };
    let served = self::served(&TlsFiles { roles, ..files }).await;
    let connect = authority.signs("a-printer", |_| {}).connect().expect("files that can be used");
    let kept = Kept::start(Dial { config: Config { connect, ..config() }, ..dial(&served.address) });
    kept.connection(0).await;
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn renewed_certificates_hold_from_the_next_connection_on_and_end_none_that_stands() {
    let authority = Authority::new();
    let expires = |year| move |params: &mut CertificateParams| params.not_after = date_time_ymd(year, 1, 1);
    let node = authority.signs("127.0.0.1", expires(2090));
    let gateway = authority.signs("modelless-gateway", |_| {});
    let served = served(&node).await;
    let connect = gateway.connect().expect("files that can be used");
    let dial = || Dial { config: Config { connect: connect.clone(), ..config() }, ..dial(&served.address) };
    let before = Kept::start(dial());
    let (_, link) = before.connection(0).await;

    // One that has expired takes its place, which only whoever reads it again can know.
    authority.signs("127.0.0.1", |params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    touched(&node);
    let refused = greet(&dial(), None).await.err().expect("it is not let in").to_string();
    assert!(refused.contains("has expired"), "{refused}");
    // Half of a pair is no reason to serve with nothing; once it is whole, it holds.
    authority.signs("127.0.0.1", expires(2095));
    let own = node.key.clone().expect("a key");
    let whole = fs::read(&own).expect("a key");
    fs::write(&own, "half").expect("written");
    let refused = greet(&dial(), None).await.err().expect("it is not let in").to_string();
    assert!(refused.contains("has expired"), "{refused}");
    fs::write(&own, whole).expect("written");
    greet(&dial(), None).await.map(drop).expect("it is good again");

    // And so on the other side, with another authority.
    let other = Authority::new();
    let anew = other.signs("127.0.0.1", |_| {});
    for (from, to) in [(&anew.cert, &node.cert), (&anew.key, &node.key), (&anew.ca, &node.ca)] {
        fs::copy(from.as_ref().expect("a file"), to.as_ref().expect("a file")).expect("copied");
    }
    let client = other.signs("modelless-gateway", |_| {});
    for (from, to) in [(&client.cert, &gateway.cert), (&client.key, &gateway.key)] {
        fs::copy(from.as_ref().expect("a file"), to.as_ref().expect("a file")).expect("copied");
    }
    touched(&node);
    touched(&gateway);
    greet(&dial(), None).await.map(drop).expect("both sides have the new ones");

    link.send(ToNode::Query(Box::new(query(1, raw("x")))));
    assert_eq!(served.node.query(0).await.input, raw("x"), "over the connection from before");
    assert_eq!(before.joined.all().len(), 1);
    before.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn who_comes_back_is_remembered_unless_certificates_have_changed_and_is_still_who_it_says_it_is() {
    let authority = Authority::new();
    let (node, gateway) =
        (authority.signs("127.0.0.1", |_| {}), authority.signs("modelless-gateway", |_| {}));
    let served = served(&node).await;
    let connect = gateway.connect().expect("files that can be used");
    let dial = || Dial { config: Config { connect: connect.clone(), ..config() }, ..dial(&served.address) };
    // Each is greeted, which is after what it needs to come back by.
    let resumed = async || greet(&dial(), None).await.expect("it is let in").stream().is_resumed();
    assert_eq!([resumed().await, resumed().await, resumed().await], [false, true, true]);
    // What it shows is not looked at again, but what it is allowed is.
    let as_scheduler = Dial { queries: false, ..dial() };
    let refused = greet(&as_scheduler, None).await.err().expect("it is not let in").to_string();
    assert!(refused.contains("a scheduler needs one for modelless-scheduler"), "{refused}");
    authority.signs("127.0.0.1", |_| {});
    touched(&node);
    assert_eq!(
        [resumed().await, resumed().await],
        [false, true],
        "of another certificate nothing is remembered"
    );
    served.stop().await;
}

/// Files that are written within one tick of the file system's clock may look alike.
fn touched(files: &TlsFiles) {
    for file in [&files.cert, &files.key, &files.ca].into_iter().flatten() {
        let open = fs::File::options().append(true).open(file).expect("a file");
        let before = open.metadata().and_then(|about| about.modified()).expect("a time");
        open.set_modified(before + Duration::from_secs(1)).expect("a time that can be set");
    }
}

#[tokio::test]
async fn one_side_with_tls_and_one_without_say_so() {
    let authority = Authority::new();
    let files = authority.signs("127.0.0.1", |_| {});
    let plain = served(&TlsFiles::default()).await;
    let refused = why(&plain, &files).await;
    assert!(refused.contains("does not speak TLS"), "{refused}");
    plain.stop().await;
    let secure = served(&files).await;
    let refused = why(&secure, &TlsFiles::default()).await;
    assert!(refused.contains("closed the connection") || refused.contains("protocol"), "{refused}");
    secure.stop().await;
}

#[test]
fn files_that_cannot_be_used_are_told_with_their_setting() {
    let authority = Authority::new();
    let good = authority.signs("127.0.0.1", |_| {});
    let wrong = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = good.clone();
        change(&mut files);
        let refused = files.accept().expect_err("they cannot be used");
        assert!(files.connect().is_err(), "nor for the other side: {refused}");
        refused
    };
    let missing = Path::new("no/such/file.pem");
    for (setting, refused) in [
        ("tls.cert", wrong(&|files| files.cert = Some(missing.into()))),
        ("tls.key", wrong(&|files| files.key = Some(missing.into()))),
        ("tls.ca", wrong(&|files| files.ca = Some(missing.into()))),
    ] {
        assert!(refused.contains(setting) && refused.contains("cannot read no/such/file.pem"), "{refused}");
    }
    let swapped = wrong(&|files| files.cert.clone_from(&good.key));
    assert!(swapped.contains("`tls.cert`") && swapped.contains("holds no certificate"), "{swapped}");
    let alone = wrong(&|files| files.key = None);
    assert!(alone.contains("they belong together"), "{alone}");
    let other = authority.signs("other", |_| {});
    let mixed = wrong(&|files| files.key.clone_from(&other.key));
    assert!(mixed.contains("not the key of"), "{mixed}");
    assert!(authority.only_believes().accept().expect_err("it has nothing to show").contains("tls.key"));
    let believes_nobody = TlsFiles { ca: None, ..good };
    assert!(believes_nobody.connect().expect_err("it believes nobody").contains("tls.ca"));
    assert!(TlsFiles::default().accept().is_ok_and(|tls| tls.is_none()), "nothing is set");
}
