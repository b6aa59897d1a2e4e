//! The provider `ec2` against moto's server: real HTTP and signatures that somebody else checks.

use super::{Place, block, gone, holds, names, wanted};
use modelless_fleet::{Ec2, Ec2Config, Ec2Pool, Error, Fleet as _, Instance, Told};
use modelless_testkit::{Moto, Proxy, moto};
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

/// EC2, and a way to it that can be cut.
struct Cloud {
    server: Moto,
    proxy: Proxy,
    folder: TempDir,
    /// Beyond what every pool has.
    more: Value,
}

impl Cloud {
    fn new() -> Self {
        Self::with(json!({}))
    }

    fn with(more: Value) -> Self {
        let (server, proxy) = (Moto::start().expect("moto"), Proxy::start().expect("a wire"));
        proxy.lead(server.address());
        let folder = tempfile::tempdir().expect("a folder to write to");
        fs::write(folder.path().join("keys"), server.credentials()).expect("a folder to write to");
        Self { server, proxy, folder, more }
    }

    fn pool(&self, pool: &str, more: &Value) -> Ec2 {
        let keys = self.folder.path().join("keys");
        let mut all = moto::pool(&self.server, self.proxy.address(), &keys);
        for more in [&self.more, more] {
            let all = all.as_object_mut().expect("an object");
            all.extend(more.as_object().expect("an object").clone());
        }
        let of: Ec2Pool = serde_json::from_value(all).expect("a pool");
        of.check().expect("a pool that can be");
        let told = Told { cluster: "c".to_owned(), ..Told::default() };
        Ec2::new(Ec2Config { cluster: "c".to_owned(), pool: pool.to_owned(), of, told }).expect("a pool")
    }

    fn faults(&self, faults: &Value) {
        self.server.faults(faults).expect("it is ordered");
    }

    fn asked(&self, action: &str) -> u64 {
        self.server.asked(action).expect("it is counted")
    }

    fn running(&self) -> Vec<Value> {
        self.server.running().expect("it is told")
    }
}

impl Place for Cloud {
    type Of = Ec2;
    fn open(&self, cluster: &str, pool: &str) -> Ec2 {
        let keys = self.folder.path().join("keys");
        let of = moto::pool(&self.server, self.proxy.address(), &keys);
        let of = serde_json::from_value(of).expect("a pool");
        let told = Told { cluster: cluster.to_owned(), ..Told::default() };
        Ec2::new(Ec2Config { cluster: cluster.to_owned(), pool: pool.to_owned(), of, told }).expect("a pool")
    }
}

fn start(fleet: &Ec2, name: &str) -> Result<Instance, Error> {
    block(fleet.start(&wanted(name)))
}

#[test]
fn moto_holds_what_every_provider_holds() {
    holds(&Cloud::new());
}

#[test]
fn moto_has_the_tags_the_type_and_the_user_data_that_were_asked_for() {
    let cloud = Cloud::with(json!({"tags": {"team": "a & b <c>"}}));
    let (plain, spot) =
        (cloud.pool("p", &json!({})), cloud.pool("q", &json!({"spot": "only", "types": ["g4dn.xlarge"]})));
    start(&plain, "p-1").expect("it starts");
    start(&spot, "q-1").expect("it starts");
    let mut running = cloud.running();
    running.sort_by_key(|one| one["tags"]["Name"].to_string());
    let [one, other] = &running[..] else { panic!("{running:?}") };
    let tags = json!({"Name": "p-1", "modelless:cluster": "c", "modelless:pool": "p", "modelless:machine": "p-1",
                      "team": "a & b <c>"});
    assert_eq!(one["tags"], tags);
    assert_eq!((&one["type"], &one["market"]), (&json!("c5.large"), &Value::Null));
    assert_eq!((&other["type"], &other["market"]), (&json!("g4dn.xlarge"), &json!("spot")));
    let user_data = one["user_data"].as_str().expect("it has some");
    assert!(
        user_data.starts_with("#!/bin/sh\ncluster='c'\n") && user_data.contains("--set 'executor.name=p-1'")
    );
}

#[test]
fn moto_makes_one_machine_of_a_request_that_is_repeated_because_nobody_heard_its_answer() {
    let cloud = Cloud::new();
    let fleet = cloud.pool("p", &json!({}));
    let first = start(&fleet, "p-1").expect("it starts");
    cloud.asked("");
    // Something between breaks off after EC2 has done it, twice.
    cloud.faults(&json!({"lose": 2}));
    let second = start(&fleet, "p-2").expect("it is tried again");
    assert_eq!(
        (cloud.asked("RunInstances"), cloud.running().len()),
        (3, 2),
        "asked for three times, and it is one machine"
    );
    assert_eq!(names(&fleet), ["p-1", "p-2"]);
    assert_eq!(start(&fleet, "p-2").expect("it is there").id, second.id);
    assert_ne!(first.id, second.id);
    gone(&fleet, &first);
    gone(&fleet, &second);
    assert!(cloud.running().is_empty());
}

#[test]
fn moto_says_that_a_type_is_not_to_be_had_and_the_next_is_asked_for() {
    let cloud = Cloud::new();
    let fleet = cloud.pool("p", &json!({"spot": "first"}));
    cloud.faults(&json!({"none_of": ["c5.large"]}));
    start(&fleet, "p-1").expect("another type is to be had");
    let of = |at: usize| (cloud.running()[at]["type"].clone(), cloud.running()[at]["market"].clone());
    assert_eq!(of(0), (json!("m5.large"), json!("spot")));

    cloud.faults(&json!({"none_of": ["c5.large", "m5.large"]}));
    let error = start(&fleet, "p-2").expect_err("there is none");
    let Error::Capacity(why) = &error else { panic!("{error}") };
    for tried in ["c5.large (spot): EC2 says Insuff", "m5.large (spot)", "c5.large: ", "m5.large: "] {
        assert!(why.contains(tried), "{why}");
    }
    cloud.faults(&json!({"none_of": [], "no_quota_for": ["c5.large", "m5.large"]}));
    let error = start(&fleet, "p-2").expect_err("no more are allowed");
    assert!(matches!(&error, Error::Quota(why) if why.contains("VcpuLimitExceeded")), "{error}");
    assert_eq!(cloud.running().len(), 1);
    cloud.faults(&json!({"no_quota_for": []}));
    start(&fleet, "p-2").expect("there is room again");
    assert_eq!(names(&fleet), ["p-1", "p-2"]);
}

#[test]
fn moto_refuses_an_unknown_image_type_machine_and_key_by_name() {
    let cloud = Cloud::new();
    let refused = |more: Value| start(&cloud.pool("p", &more), "p-1").expect_err("it is refused");
    let image = refused(json!({"image": "ami-12345678"}));
    assert!(matches!(&image, Error::Refused(why) if why.contains("InvalidAMIID.NotFound")), "{image}");
    let kind = refused(json!({"types": ["c5.enormous"]}));
    assert!(matches!(&kind, Error::Refused(why) if why.contains("c5.enormous")), "{kind}");
    let fleet = cloud.pool("p", &json!({}));
    block(fleet.stop("i-0123456789abcdef0")).expect("what is not there is taken away already");

    let keys = cloud.server.credentials().replace(&cloud.server.secret, "another");
    fs::write(cloud.folder.path().join("wrong"), keys).expect("a folder to write to");
    let error = refused(json!({"credentials-file": cloud.folder.path().join("wrong")}));
    assert!(matches!(&error, Error::Refused(why) if why.contains("AuthFailure")), "{error}");
    assert!(!error.to_string().contains("another"), "a key is not shown: {error}");
    assert!(cloud.running().is_empty());
}

#[test]
fn moto_asks_for_patience_and_is_asked_again() {
    let cloud = Cloud::new();
    let fleet = cloud.pool("p", &json!({}));
    cloud.faults(&json!({"throttle": 2}));
    start(&fleet, "p-1").expect("it is tried again");
    cloud.faults(&json!({"fail": 2}));
    assert_eq!(names(&fleet), ["p-1"]);
    // Whoever throttles for longer is not hammered: it is for the scheduler to ask later.
    cloud.faults(&json!({"throttle": 100}));
    cloud.asked("");
    let error = block(fleet.list()).expect_err("too many");
    assert!(matches!(&error, Error::Throttled(why) if why.contains("RequestLimitExceeded")), "{error}");
    cloud.faults(&json!({"throttle": 0}));
    assert_eq!((cloud.asked("DescribeInstances"), names(&fleet).len()), (0, 1));
}

#[test]
fn moto_that_is_down_answers_nothing_and_when_it_is_back_everything_is_found_again() {
    let mut cloud = Cloud::new();
    let fleet = cloud.pool("p", &json!({}));
    let one = start(&fleet, "p-1").expect("it starts");
    cloud.proxy.sever();
    for error in [
        block(fleet.list()).expect_err("it is away"),
        start(&fleet, "p-2").expect_err("it is away"),
        block(fleet.stop(&one.id)).expect_err("it is away"),
    ] {
        assert!(matches!(&error, Error::Away(why) if why.contains("asking EC2")), "{error}");
    }
    cloud.proxy.mend();
    assert_eq!(block(fleet.list()).expect("it is back"), [one]);
    cloud.server.kill();
    let error = block(fleet.list()).expect_err("it was killed");
    assert!(matches!(error, Error::Away(_)), "{error}");
}

#[test]
fn moto_has_two_machines_by_one_name_and_the_older_stays() {
    let cloud = Cloud::new();
    let fleet = cloud.pool("p", &json!({}));
    let one = start(&fleet, "p-1").expect("it starts");
    let other = cloud.server.second("p-1").expect("it is made");
    assert_eq!(cloud.running().len(), 2);
    let listed = block(fleet.list()).expect("it answers");
    let [stays] = &listed[..] else { panic!("{listed:?}") };
    assert!(stays.id == one.id || stays.id == other);
    let running: Vec<Value> = cloud.running().into_iter().map(|one| one["id"].clone()).collect();
    assert_eq!(running, [json!(stays.id)]);
    assert_eq!(block(fleet.list()).expect("it answers"), listed);
}

#[test]
fn moto_tells_of_a_machine_that_ended_by_itself_by_leaving_it_out() {
    let cloud = Cloud::new();
    let fleet = cloud.pool("p", &json!({}));
    let one = start(&fleet, "p-1").expect("it starts");
    cloud.server.end(&one.id).expect("it ends");
    assert!(names(&fleet).is_empty());
}
