//! Tensors in shared memory, over real sockets: whose it is says the connection.

use super::access::{made, made_for};
use super::world::{Does, Running, Setup, World, four};
use modelless_store::Access as _;
use modelless_testkit::{Connection, Request, Response};
use modelless_types::{Scopes, TenantId};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::PathBuf;

const INFER: &str = "/v2/models/arrays/infer";

/// An object in shared memory, gone with the value.
struct Object(PathBuf);

impl Object {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = PathBuf::from(format!("/dev/shm/modelless-regions-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn key(&self) -> String {
        format!("/{}", self.0.file_name().unwrap().to_str().unwrap())
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.0).unwrap()
    }

    fn cut(&self, size: u64) {
        File::options().write(true).open(&self.0).unwrap().set_len(size).unwrap();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

async fn running(shared_memory: bool) -> Running {
    let mut setup = Setup::default();
    setup.config.shared_memory = shared_memory;
    let world = World::with(setup).await;
    *world.node.does.lock().unwrap() = Does::Echo;
    world.run().await
}

/// Asks over a connection of its own, with a key if there is one.
async fn ask(run: &Running, key: &str, request: Request) -> Response {
    let request = if key.is_empty() { request } else { request.header("api-key", key) };
    run.with_connection(move |mut connection: Connection| connection.exchange(&request).unwrap()).await
}

fn register(region: &str, key: &str, offset: u64, bytes: u64) -> Request {
    let body = json!({"key": key, "offset": offset, "byte_size": bytes});
    Request::post(&format!("/v2/systemsharedmemory/region/{region}/register")).json(&body)
}

/// Four numbers in, the same four out; `input` and `output` say where.
fn infer(input: &Value, output: Option<&Value>) -> Request {
    let mut body =
        json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": input}]});
    if let Some(output) = output {
        body["outputs"] = json!([{"name": "y", "parameters": output}]);
    }
    Request::post(INFER).json(&body)
}

fn at(region: &str, offset: u64, bytes: u64) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": bytes})
}

fn numbers(first: u8) -> Vec<u8> {
    (first..first + 4).flat_map(|number| f32::from(number).to_le_bytes()).collect()
}

fn refusal(got: &Response) -> (u16, String) {
    let body = got.json().unwrap();
    (got.status, body["reason"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn inputs_come_from_regions_and_outputs_go_to_them() {
    let run = running(true).await;
    let object = Object::new("both", &[vec![0; 8], numbers(1), vec![0; 40]].concat());
    let got = ask(&run, "", register("r", &object.key(), 4, 60)).await;
    assert_eq!((got.status, got.json().unwrap()), (200, json!({})), "{got}");
    let got = ask(&run, "", Request::get("/v2/systemsharedmemory/region/r/status")).await;
    let shown = json!([{"name": "r", "key": object.key(), "offset": 4, "byte_size": 60}]);
    assert_eq!(got.json().unwrap(), shown);
    let got = ask(&run, "", Request::get("/v2")).await;
    assert!(got.json().unwrap()["extensions"].as_array().unwrap().contains(&json!("system_shared_memory")));

    let got = ask(&run, "", infer(&at("r", 4, 16), Some(&at("r", 28, 32)))).await;
    assert_eq!(got.status, 200, "{got}");
    let output = &got.json().unwrap()["outputs"][0];
    // As Triton tells it: no word of where it is, which clients would take for bytes that follow.
    assert_eq!(output, &json!({"name": "y", "datatype": "FP32", "shape": [1, 4]}));
    assert_eq!(object.bytes()[32..48], numbers(1));
    assert_eq!(object.bytes()[48..], [0; 16], "nothing beyond the output");
    // What lies there when it is asked counts.
    fs::write(&object.0, [vec![0; 8], numbers(5), vec![0; 40]].concat()).unwrap();
    let got = ask(&run, "", infer(&at("r", 4, 16), None)).await;
    assert_eq!(got.json().unwrap()["outputs"][0]["data"], json!([5.0, 6.0, 7.0, 8.0]));

    ask(&run, "", Request::post("/v2/systemsharedmemory/unregister")).await;
    let got = ask(&run, "", infer(&at("r", 4, 16), None)).await;
    assert_eq!(refusal(&got), (404, "unknown_region".to_owned()));
    let got = ask(&run, "", Request::get("/v2/systemsharedmemory/region/r/status")).await;
    assert_eq!(refusal(&got), (404, "unknown_region".to_owned()));
    run.stop().await;
}

#[tokio::test]
async fn what_does_not_lie_in_its_region_is_refused_before_anything_is_asked() {
    let run = running(true).await;
    let object = Object::new("bounds", &[0; 64]);
    assert_eq!(ask(&run, "", register("r", &object.key(), 32, 32)).await.status, 200);
    let again = ask(&run, "", register("r", &object.key(), 0, 8)).await;
    assert_eq!(refusal(&again), (409, "region_exists".to_owned()));
    for (input, output, wanted) in [
        (at("r", 32, 1), None, "out_of_region"),
        (at("r", 17, 16), None, "out_of_region"),
        (at("r", u64::MAX, 16), None, "out_of_region"),
        (at("r", 16, u64::MAX - 8), None, "too_large"),
        (at("r", 0, 15), None, "malformed"),
        (at("other", 0, 16), None, "unknown_region"),
        (json!({"shared_memory_region": "r"}), None, "malformed"),
        (json!({"shared_memory_region": "r", "shared_memory_byte_size": -1}), None, "malformed"),
        (at("r", 0, 16), Some(at("r", 17, 16)), "out_of_region"),
        (at("r", 0, 16), Some(at("r", u64::MAX, 2)), "out_of_region"),
        (at("r", 0, 16), Some(at("other", 0, 16)), "unknown_region"),
        // There would be room in the region, but none was given.
        (at("r", 0, 16), Some(at("r", 16, 15)), "out_of_region"),
    ] {
        let got = ask(&run, "", infer(&input, output.as_ref())).await;
        assert_eq!(refusal(&got).1, wanted, "{input} {output:?}: {got}");
    }
    let both = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4], "parameters": at("r", 0, 16)}]});
    let got = ask(&run, "", Request::post(INFER).json(&both)).await;
    assert_eq!(refusal(&got).1, "malformed");
    assert_eq!(object.bytes(), [0; 64]);
    run.stop().await;
}

#[tokio::test]
async fn an_object_that_is_cut_short_while_its_query_runs_costs_that_query_only() {
    let mut run = running(true).await;
    let object = Object::new("cut", &[numbers(1), vec![0; 48]].concat());
    assert_eq!(ask(&run, "", register("r", &object.key(), 0, 64)).await.status, 200);
    *run.node.does.lock().unwrap() = Does::Keep;
    let address = run.addresses.http;
    let asked = tokio::task::spawn_blocking(move || {
        let request = infer(&at("r", 0, 16), Some(&at("r", 32, 16)));
        Connection::open(address).unwrap().exchange(&request).unwrap()
    });
    let sent = run.next_query().await;
    object.cut(0);
    run.node.answer_with(&sent, four(&[1.0, 2.0, 3.0, 4.0]));
    assert_eq!(refusal(&asked.await.unwrap()), (400, "out_of_region".to_owned()));
    assert_eq!(object.bytes(), b"", "it was not made longer");
    *run.node.does.lock().unwrap() = Does::Echo;
    let got = ask(&run, "", infer(&at("r", 0, 16), None)).await;
    assert_eq!(refusal(&got), (400, "out_of_region".to_owned()));
    object.cut(64);
    assert_eq!(ask(&run, "", infer(&at("r", 0, 16), None)).await.status, 200, "it is as long again");
    run.stop().await;
}

#[tokio::test]
async fn a_region_is_its_applications_alone() {
    let world = World::new().await;
    let key = async |app: &str| {
        let key = made_for(&world, (TenantId::DEFAULT, app), Scopes::ALL).await;
        key.expose().to_owned()
    };
    let (mine, beside) = (key("mine").await, key("beside").await);
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    let theirs = made(&world, tenant, Scopes::ALL).await.expose().to_owned();
    let mut setup = Setup { store: Some(world.store), ..Setup::default() };
    setup.config.shared_memory = true;
    let world = World::with(setup).await;
    *world.node.does.lock().unwrap() = Does::Echo;
    let run = world.run().await;
    let object = Object::new("keys", &[0; 64]);
    assert_eq!(ask(&run, &mine, register("r", &object.key(), 0, 64)).await.status, 200);
    let list = || Request::get("/v2/systemsharedmemory/status");
    for other in [&theirs, &beside] {
        assert_eq!(ask(&run, other, list()).await.json().unwrap(), json!([]));
        for path in ["/v2/systemsharedmemory/unregister", "/v2/systemsharedmemory/region/r/unregister"] {
            assert_eq!(ask(&run, other, Request::post(path)).await.status, 200);
        }
    }
    for (input, output) in [(at("r", 0, 16), None), (json!({}), Some(at("r", 0, 16)))] {
        let mut request = infer(&input, output.as_ref());
        if output.is_some() {
            let inputs = json!([{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]);
            let outputs = json!([{"name": "y", "parameters": output}]);
            request = Request::post(INFER).json(&json!({"inputs": inputs, "outputs": outputs}));
        }
        let got = ask(&run, &beside, request).await;
        assert_eq!(refusal(&got), (404, "unknown_region".to_owned()));
    }
    // Who may only ask has no room in the audit log, and takes nobody's changes.
    let mut tries = 0;
    loop {
        let got = ask(&run, &beside, register("r", "/modelless-no-such", 0, 1)).await;
        match refusal(&got) {
            (404, reason) if reason == "no_such_memory" && tries < 2_000 => tries += 1,
            (429, reason) if reason == "over_quota" && tries >= 200 => break,
            _ => panic!("after {tries}: {got}"),
        }
    }
    assert_eq!(refusal(&ask(&run, &mine, register("s", "/modelless-no-such", 0, 1)).await).0, 404);
    let noted = ask(&run, &mine, Request::get("/v1/audit")).await.json().unwrap();
    assert_eq!(noted["entries"].as_array().unwrap().len(), 0, "{noted}");
    // Who was passed on by a proxy is not who opened the connection.
    let passed_on = register("s", &object.key(), 0, 64).header("x-forwarded-for", "203.0.113.7");
    assert_eq!(refusal(&ask(&run, &mine, passed_on).await), (403, "not_of_this_machine".to_owned()));
    assert_eq!(ask(&run, &mine, list()).await.json().unwrap().as_array().unwrap().len(), 1);
    let got = ask(&run, &mine, infer(&at("r", 0, 16), None)).await;
    assert_eq!(got.status, 200, "{got}");
    let got = ask(&run, "", infer(&at("r", 0, 16), None)).await;
    assert_eq!(got.status, 401, "{got}");
    run.stop().await;
}

#[tokio::test]
async fn where_it_is_not_switched_on_nothing_is_opened() {
    let run = running(false).await;
    let object = Object::new("off", &[0; 64]);
    let off = (501, "no_shared_memory".to_owned());
    assert_eq!(refusal(&ask(&run, "", register("r", &object.key(), 0, 64)).await), off);
    assert_eq!(refusal(&ask(&run, "", infer(&at("r", 0, 16), None)).await), off);
    for path in ["/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"] {
        assert_eq!(ask(&run, "", Request::get(path)).await.json().unwrap(), json!([]));
    }
    let extensions = ask(&run, "", Request::get("/v2")).await.json().unwrap();
    assert!(!extensions["extensions"].as_array().unwrap().contains(&json!("system_shared_memory")));
    run.stop().await;
}

#[tokio::test]
async fn an_application_has_so_many_regions_and_no_more() {
    let run = running(true).await;
    let object = Object::new("many", &[0; 64]);
    let key = object.key();
    let last = run
        .with_connection(move |mut connection| {
            let mut last = None;
            for number in 0..129 {
                last = Some(connection.exchange(&register(&format!("r{number}"), &key, 0, 64)).unwrap());
            }
            last.unwrap()
        })
        .await;
    assert_eq!(refusal(&last), (429, "too_many_regions".to_owned()));
    run.stop().await;
}
