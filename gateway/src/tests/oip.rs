use super::world::{Does, Got, PNG, Setup, World, send};
use axum::body::Body;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use http::Request;
use modelless_decision::route::Ready;
use modelless_types::{Accuracy, Bytes, DeviceIx, Micros, Prefer, Refusal, ReplicaState, TaskId, VariantId};
use modelless_wire::{Input, LoadTimes, ReplicaStatus, ToNode};
use serde_json::{Value, json};
use std::io::Write as _;
use std::time::Duration;

pub(super) const ARRAYS: &str = "/v2/models/arrays/infer";

pub(super) async fn echoing(setup: Setup) -> World {
    let world = World::with(setup).await;
    *world.node.does.lock().unwrap() = Does::Echo;
    world
}

pub(super) fn floats(rows: usize) -> Vec<u8> {
    let all = (0..u16::try_from(rows * 4).unwrap()).map(f32::from);
    all.flat_map(f32::to_le_bytes).collect()
}

/// A request with its tensor behind the JSON.
pub(super) async fn binary(world: &World, target: &str, request: &Value, tail: &[u8]) -> Got {
    let head = request.to_string();
    let length = head.len().to_string();
    let body = [head.as_bytes(), tail].concat();
    let request = Request::post(target).header("inference-header-content-length", length);
    send(world.router(), request.body(Body::from(body)).unwrap()).await
}

pub(super) fn asked(rows: usize) -> Value {
    json!({"id": "7", "inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 4],
        "parameters": {"binary_data_size": rows * 16}}], "parameters": {"binary_data_output": true}})
}

#[tokio::test]
async fn tensors_come_and_go_as_json_and_as_bytes() {
    let world = echoing(Setup::default()).await;
    for (shape, data) in [
        (json!([1, 4]), json!([[0.5, 1, 2, 3]])),
        (json!([1, 4]), json!([0.5, 1.0, 2.0, 3.0])),
        (json!([4]), json!([0.5, 1, 2, 3])),
    ] {
        let body = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]});
        let got = world.post(ARRAYS, "", body.to_string().as_bytes()).await;
        assert_eq!(got.status, 200, "{got:?}");
        let answer = got.json();
        assert_eq!((&answer["model_name"], &answer["id"]), (&json!("arrays"), &Value::Null));
        let expected =
            json!([{"name": "y", "datatype": "FP32", "shape": shape, "data": [0.5, 1.0, 2.0, 3.0]}]);
        assert_eq!(answer["outputs"], expected);
        let version: u32 = answer["model_version"].as_str().unwrap().parse().unwrap();
        let id = world.handle.query_ids().verify(answer["parameters"]["query_id"].as_str().unwrap()).unwrap();
        assert_eq!(id.variant, VariantId(version), "the version is the variant that answered");
        assert_eq!(answer["parameters"]["batch"], 3);
        assert_eq!(got.header("modelless-model"), "echo");
    }
    let got = binary(&world, ARRAYS, &asked(3), &floats(3)).await;
    assert_eq!(got.status, 200, "{got:?}");
    assert_eq!(got.header("content-type"), "application/octet-stream");
    let head: usize = got.header("inference-header-content-length").parse().unwrap();
    let answer: Value = serde_json::from_slice(&got.body[..head]).unwrap();
    assert_eq!(answer["id"], "7");
    assert_eq!(answer["outputs"][0]["shape"], json!([3, 4]));
    assert_eq!(answer["outputs"][0]["parameters"]["binary_data_size"], 48);
    assert_eq!(got.body[head..], floats(3), "rows are answered in their order");
    // Nothing but the tensor.
    let got = binary(&world, ARRAYS, &json!(null), &floats(1)).await;
    assert_eq!(got.status, 400, "`null` is no request");
    let raw =
        Request::post(ARRAYS).header("inference-header-content-length", "0").body(Body::from(floats(1)));
    let got = send(world.router(), raw.unwrap()).await;
    assert_eq!(got.body[got.body.len() - 16..], floats(1));
}

#[tokio::test]
async fn many_rows_are_answered_in_order_and_a_bounded_number_at_a_time() {
    let mut world = echoing(Setup::default()).await;
    let rows = 3_000;
    let got = binary(&world, ARRAYS, &asked(rows), &floats(rows)).await;
    let head: usize = got.header("inference-header-content-length").parse().unwrap();
    assert_eq!(got.body[head..], floats(rows));
    assert!(!got.headers.contains_key("modelless-query-id"), "so many names would make no head");
    let mut asked = 0;
    while let Ok(frame) = world.seen.try_recv() {
        asked += usize::from(matches!(frame, ToNode::Query(_)));
    }
    assert_eq!(asked, rows, "each row is a query of its own");
    *world.node.does.lock().unwrap() = Does::Refuse(Refusal::OverQuota);
    let got = binary(&world, ARRAYS, &super::oip::asked(2), &floats(2)).await;
    assert_eq!(got.refusal(), (429, "over_quota".to_owned()));
    assert!(got.json()["error"].as_str().unwrap().starts_with("row 0 of 2: "));
    assert_eq!(world.handle.open_queries(), 0);
}

#[tokio::test]
async fn goals_stand_in_parameters_headers_and_the_query_string() {
    let mut world = echoing(Setup::default()).await;
    let mut request = asked(1);
    request["parameters"] = json!({"accuracy": 0.7, "prefer": "cost", "priority": 1, "timeout": 250_000,
        "triton_anything": 1, "max_cost": null});
    let got = binary(&world, &format!("{ARRAYS}?latency_ms=900"), &request, &floats(1)).await;
    assert_eq!(got.status, 200, "{got:?}");
    let ToNode::Query(frame) = world.seen.recv().await.unwrap() else { panic!("a query was sent") };
    assert!(frame.deadline_in <= Micros::from_millis(250), "of two bounds the shorter one holds");
    assert_eq!((frame.prefer, frame.priority.level()), (Prefer::Cost, 1));
    for (parameters, said) in [
        (json!({"acuracy": 0.7}), "did you mean \\\"accuracy\\\"?"),
        (json!({"accuracy": 2}), "a number from 0 to 1"),
        (json!({"accuracy": [1]}), "must be a string, a number or a boolean"),
        (json!({"sequence_id": 5}), "sequences are not kept"),
        (json!({"timeout": -1}), "microseconds"),
        (json!({"timeout": 3_600_000_001_u64}), "microseconds"),
    ] {
        let mut request = asked(1);
        request["parameters"] = parameters;
        let got = binary(&world, ARRAYS, &request, &floats(1)).await;
        assert_eq!(got.status, 400, "{got:?}");
        assert!(String::from_utf8_lossy(&got.body).contains(said), "{said}: {got:?}");
    }
    let mut request = asked(1);
    request["parameters"] = json!({"accuracy": Accuracy::from_ppm(990_000).unwrap().as_f64()});
    assert_eq!(
        binary(&world, ARRAYS, &request, &floats(1)).await.refusal(),
        (422, "floor_unreachable".into())
    );
}

#[tokio::test]
async fn what_does_not_add_up_is_named() {
    let world = echoing(Setup::default()).await;
    let ok = asked(1);
    let with = |pointer: &str, value: Value| {
        let mut request = ok.clone();
        *request.pointer_mut(pointer).unwrap() = value;
        request
    };
    for (request, said) in [
        (with("/inputs/0/name", json!("z")), "there is no input"),
        (with("/inputs/0/datatype", json!("FP64")), "its datatype is FP64; expected FP32"),
        (with("/inputs/0/datatype", json!("BF16")), "are not taken"),
        (with("/inputs/0/shape", json!([1, 5])), "its shape is [1, 5]; expected [-1, 4]"),
        (with("/inputs/0/shape", json!([0, 4])), "a request has 1 to 65536 rows"),
        (with("/inputs/0/shape", json!([-1, 4])), "a request has 1 to 65536 rows"),
        (with("/inputs/0/shape", json!([2, 4])), "do not go with its shape"),
        (with("/inputs/0/parameters", json!({"binary_data_size": 17})), "its bytes are missing"),
        (with("/inputs/0/parameters", json!({"binary_data_size": 12})), "follow the last tensor"),
        (with("/inputs/0/parameters", json!({})), "it has no `data`"),
        (with("/inputs/0/parameters", json!({"shared_memory_region": "r"})), "shared memory"),
        (with("/inputs", json!([])), "16 bytes follow the last tensor"),
    ] {
        let got = binary(&world, ARRAYS, &request, &floats(1)).await;
        let text = got.json()["error"].as_str().unwrap().to_owned();
        assert!(got.status.is_client_error() || got.status == 501, "{request}: {got:?}");
        assert!(text.contains(said), "{request}: {text}");
    }
    let mut wanted = ok.clone();
    for (outputs, said) in [
        (json!([{"name": "q"}]), "there is no output"),
        (json!([{"name": "y"}, {"name": "y"}]), "asked for twice"),
    ] {
        wanted["outputs"] = outputs;
        let got = binary(&world, ARRAYS, &wanted, &floats(1)).await;
        assert!(got.json()["error"].as_str().unwrap().contains(said), "{got:?}");
    }
    let long = Request::post(ARRAYS).header("inference-header-content-length", "99").body(Body::from("{}"));
    assert_eq!(send(world.router(), long.unwrap()).await.status, 400);
    let odd = Request::post(ARRAYS).header("inference-header-content-length", "-1").body(Body::from("{}"));
    assert_eq!(send(world.router(), odd.unwrap()).await.status, 400);
}

#[tokio::test]
async fn pictures_and_texts_are_one_element_of_bytes() {
    let mut world = echoing(Setup { texts: true, ..Setup::default() }).await;
    let string = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_le_bytes()[..], bytes].concat();
    let cell = string(PNG);
    let request = json!({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1, 1],
        "parameters": {"binary_data_size": cell.len()}}], "outputs": [
        {"name": "scores"}, {"name": "label"}]});
    let got = binary(&world, "/v2/models/fashion/infer", &request, &cell).await;
    let outputs = got.json()["outputs"].clone();
    assert_eq!(outputs[0]["data"], json!([0.25, 0.75]), "in the order of the labels");
    assert_eq!((&outputs[1]["data"], &outputs[1]["shape"]), (&json!(["dog"]), &json!([1, 1])));
    let ToNode::Query(frame) = world.seen.recv().await.unwrap() else { panic!("a query was sent") };
    let Input::Json { inputs, parameters } = frame.input else { panic!("raw inputs have no parameters") };
    assert!(inputs.starts_with(b"\"iVBORw0KGg"), "the picture in base64");
    assert_eq!(parameters.unwrap(), r#"{"top_k":2}"#, "every label has a place");
    let raw = Request::post("/v2/models/fashion/infer").header("inference-header-content-length", "0");
    assert_eq!(send(world.router(), raw.body(Body::from(PNG)).unwrap()).await.status, 200);
    for (shape, texts) in [(json!([2]), 2), (json!([2, 1]), 2), (json!([1]), 1)] {
        let data: Vec<&str> = ["a ship", "b"].into_iter().take(texts).collect();
        let request = json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": shape, "data": data}],
            "outputs": [{"name": "scores", "parameters": {"classification": 1}}]});
        let got = world.post("/v2/models/words/infer", "", request.to_string().as_bytes()).await;
        assert_eq!(got.json()["outputs"][0]["data"], json!(vec!["0.750000:1:dog"; texts]), "{got:?}");
    }
    let no_text = string(b"\xff");
    let request = json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1],
        "parameters": {"binary_data_size": no_text.len()}}]});
    assert_eq!(binary(&world, "/v2/models/words/infer", &request, &no_text).await.status, 400);
    let request = json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [9],
        "parameters": {"binary_data_size": no_text.len()}}]});
    let got = binary(&world, "/v2/models/words/infer", &request, &no_text).await;
    assert!(got.json()["error"].as_str().unwrap().contains("strings do not go with"), "{got:?}");
}

#[tokio::test]
async fn packed_bodies_are_unpacked_and_bombs_are_not() {
    let config = crate::Config { max_body_bytes: 1 << 20, ..crate::Config::default() };
    let world = echoing(Setup { config, ..Setup::default() }).await;
    let head = asked(100).to_string();
    let plain = [head.as_bytes(), &floats(100)].concat();
    let gzip = |part: &[u8]| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(part).unwrap();
        gzip.finish().unwrap()
    };
    // Of two members, as what appends to a file writes it.
    let gzip = [gzip(&plain[..700]), gzip(&plain[700..])].concat();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(&plain).unwrap();
    for (encoding, body) in [("gzip", gzip), ("deflate", zlib.finish().unwrap())] {
        let request = Request::post(ARRAYS)
            .header("inference-header-content-length", head.len().to_string())
            .header("content-encoding", encoding)
            .header("accept-encoding", encoding)
            .body(Body::from(body));
        let got = send(world.router(), request.unwrap()).await;
        assert_eq!((got.status.as_u16(), got.header("content-encoding")), (200, encoding), "{got:?}");
        let mut unpacked = Vec::new();
        let mut reader: Box<dyn std::io::Read> = match encoding {
            "gzip" => Box::new(flate2::read::GzDecoder::new(&got.body[..])),
            _ => Box::new(flate2::read::ZlibDecoder::new(&got.body[..])),
        };
        reader.read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked[unpacked.len() - 1_600..], floats(100));
    }
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![b' '; 64 << 20]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 1 << 20);
    let request = Request::post(ARRAYS).header("content-encoding", "gzip").body(Body::from(bomb));
    assert_eq!(send(world.router(), request.unwrap()).await.refusal(), (413, "too_large".to_owned()));
    let metrics = world.metrics.encode();
    assert!(metrics.contains(r#"nv_inference_request_success{model="arrays""#), "{metrics}");
    assert!(metrics.trim_end().ends_with("# EOF"), "and the end mark stays the end");
}

#[tokio::test]
async fn a_task_shows_itself_as_a_model() {
    let world = echoing(Setup { texts: true, ..Setup::default() }).await;
    let about = world.get("/v2").await.json();
    assert!(about["extensions"].as_array().unwrap().contains(&json!("binary_tensor_data")));
    assert_eq!(world.get("/v2/models").await.json()["models"], json!(["arrays", "fashion", "words"]));
    let metadata = world.get("/v2/models/fashion").await.json();
    assert_eq!(metadata["inputs"], json!([{"name": "image", "datatype": "BYTES", "shape": [-1, 1]}]));
    assert_eq!(metadata["outputs"][0], json!({"name": "scores", "datatype": "FP32", "shape": [-1, 2]}));
    assert_eq!(metadata["versions"], json!(["1", "2"]));
    let config = world.get("/v2/models/arrays/config").await.json();
    assert_eq!(config["input"][0]["dims"], json!([4]));
    assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
    assert_eq!(
        world.get("/v2/models/arrays/versions/3/ready").await.json(),
        json!({"name": "arrays", "ready": true})
    );
    assert_eq!(
        world.get("/v2/models/arrays/versions/9").await.refusal(),
        (404, "unknown_version".to_owned())
    );
    assert_eq!(world.get("/v2/models/none/ready").await.refusal(), (404, "unknown_task".to_owned()));
    let index = world.post("/v2/repository/index", "", b"").await.json();
    assert_eq!(index[0], json!({"name": "arrays", "version": "3", "state": "READY", "reason": ""}));
    assert_eq!(index.as_array().unwrap().len(), 4);
    // By its number, a variant answers that would not have otherwise.
    let body =
        json!({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["iVBORw0KGgo="]}]});
    let target = "/v2/models/fashion/versions/2/infer";
    let got = world.post(target, "", body.to_string().as_bytes()).await;
    assert_eq!((got.json()["model_version"].clone(), got.header("modelless-model")), (json!("2"), "large"));
    let stats = world.get("/v2/models/fashion/versions/2/stats").await.json()["model_stats"][0].clone();
    assert_eq!((&stats["version"], &stats["inference_count"]), (&json!("2"), &json!(1)));
    assert_eq!(stats["inference_stats"]["compute_infer"], json!({"count": 1, "ns": 700_000}));
    world.post(&format!("{target}?variant=small-fp32"), "", b"{}").await;
    let all = world.get("/v2/models/fashion/stats").await.json()["model_stats"].clone();
    assert_eq!(all[2]["inference_stats"]["fail"]["count"], 1, "what failed stands by itself: {all}");
}

#[tokio::test(start_paused = true)]
async fn a_late_row_is_asked_again_only_where_others_of_its_request_stood_in_its_way() {
    let mut world = World::new().await;
    *world.node.does.lock().unwrap() = Does::Refuse(Refusal::TooLate { waited: Micros(5) });
    let bounded = |rows: usize| {
        let mut asked = asked(rows);
        asked["parameters"]["latency_ms"] = json!(500);
        asked
    };
    for (request, rows, least, most) in [(asked(1), 1, 1, 1), (bounded(2), 2, 1, 2), (asked(2), 2, 10, 20)] {
        let got = binary(&world, ARRAYS, &request, &floats(rows)).await;
        assert_eq!(got.refusal(), (504, "too_late".to_owned()));
        let sent = std::iter::from_fn(|| world.seen.try_recv().ok());
        let sent = sent.filter(|frame| matches!(frame, ToNode::Query(_))).count();
        assert!((least..=most).contains(&sent), "{rows} rows: {sent} queries");
    }
}

#[tokio::test]
async fn what_json_cannot_say_is_given_as_bytes_and_named_elsewhere() {
    let world = echoing(Setup::default()).await;
    let odd: Vec<u8> =
        [f32::NAN, f32::INFINITY, -0.0, 1.0].iter().flat_map(|cell| cell.to_le_bytes()).collect();
    let got = binary(&world, ARRAYS, &asked(1), &odd).await;
    assert!(got.status == 200 && got.body.ends_with(&odd), "{got:?}");
    let mut as_json = asked(1);
    as_json["parameters"] = json!({"binary_data_output": false});
    let got = binary(&world, ARRAYS, &as_json, &odd).await;
    let why = got.json()["error"].as_str().unwrap().to_owned();
    assert!(got.status == 400 && why.contains("element 0") && why.contains("binary_data"), "{got:?}");
    let got = world.post("/v1/tasks/arrays", "application/octet-stream", &odd).await;
    let why = got.json()["error"].as_str().unwrap().to_owned();
    assert_eq!(got.refusal().1, "model_error");
    assert!(why.contains("\"y\"") && why.contains("Open Inference Protocol"), "{why}");
    let fine: Vec<u8> = [0.5_f32, 1.0, 2.0, 3.0].iter().flat_map(|cell| cell.to_le_bytes()).collect();
    let got = world.post("/v1/tasks/arrays", "application/octet-stream", &fine).await;
    let y = json!({"y": {"shape": [4], "datatype": "FP32", "data": [0.5, 1.0, 2.0, 3.0]}});
    assert_eq!((got.status.as_u16(), got.json()["outputs"].clone()), (200, y));
}

#[tokio::test]
async fn loading_asks_a_node() {
    let world = echoing(Setup::default()).await;
    let load = "/v2/repository/models/fashion/load";
    assert_eq!(world.post(load, "", b"").await.status, 200, "it is in memory already");
    let body = json!({"parameters": {"config": "{}"}}).to_string();
    assert!(
        world.post(load, "", body.as_bytes()).await.json()["error"].as_str().unwrap().contains("register")
    );
    let body = json!({"parameters": {"version": "77"}}).to_string();
    assert_eq!(world.post(load, "", body.as_bytes()).await.status, 404);
}

fn replica(variant: VariantId, state: ReplicaState, count: u32) -> ReplicaStatus {
    ReplicaStatus {
        device: DeviceIx(0),
        variant,
        state,
        memory: Bytes(1),
        slowdown: None,
        cause: String::new(),
        loads: LoadTimes { count, cold: None, warm: None },
        signs: None,
    }
}

/// The node says that it has the small model or not, and in which state.
fn says(world: &World, ready: Ready, state: ReplicaState, cause: &str) {
    world.status.send_modify(|status| {
        status
            .info
            .offers
            .iter_mut()
            .filter(|offer| offer.task == TaskId(1))
            .for_each(|offer| offer.ready = ready);
        status.replicas = vec![ReplicaStatus { cause: cause.to_owned(), ..replica(SMALL, state, 0) }];
    });
}

#[tokio::test]
async fn what_is_not_in_memory_is_loaded_and_the_answer_comes_when_it_is_or_with_why_it_could_not_be() {
    const COLD: Ready = Ready::Cold { load: Micros(80_000) };
    for (state, ready, said) in [
        (ReplicaState::Active, Ready::Resident, None),
        (ReplicaState::Failed, COLD, Some("it could not be loaded: a node of the graph is unknown")),
    ] {
        let mut world = echoing(Setup::default()).await;
        says(&world, COLD, ReplicaState::Failed, "an earlier one");
        let load = Request::post("/v2/repository/models/fashion/load");
        let body = json!({"parameters": {"version": SMALL.0.to_string()}}).to_string();
        let mut answers = tokio::task::JoinSet::new();
        answers.spawn(send(world.router(), load.body(Body::from(body)).unwrap()));
        while !matches!(world.seen.recv().await.unwrap(), ToNode::Wake { .. }) {}
        says(&world, COLD, ReplicaState::Failed, "an earlier one");
        says(&world, COLD, ReplicaState::Loading, "");
        let early = tokio::time::timeout(Duration::from_millis(20), answers.join_next()).await;
        assert!(early.is_err(), "it is on its way");
        says(&world, ready, state, "a node of the graph is unknown");
        let got = answers.join_next().await.unwrap().unwrap();
        assert_eq!(got.status, if said.is_some() { 503 } else { 200 }, "{got:?}");
        assert_eq!(got.json()["error"].as_str(), said, "{got:?}");
    }
}

const UNLOAD: &str = "/v2/repository/models/fashion/unload";
const SMALL: VariantId = VariantId(1);

#[tokio::test]
async fn unloading_is_answered_when_all_of_a_task_has_left_every_node_or_was_loaded_anew() {
    let mut world = echoing(Setup::default()).await;
    let tell = |world: &World, replicas: Vec<ReplicaStatus>| {
        world.status.send_modify(|status| status.replicas = replicas);
    };
    let large = VariantId(2);
    tell(&world, vec![replica(SMALL, ReplicaState::Active, 1), replica(large, ReplicaState::Draining, 4)]);
    let request = Request::post(UNLOAD).body(Body::from(r#"{"parameters":{"unload_dependents":false}}"#));
    let mut answers = tokio::task::JoinSet::new();
    answers.spawn(send(world.router(), request.unwrap()));
    let mut told = Vec::new();
    while told.len() < 2 {
        if let ToNode::Unload { variant } = world.seen.recv().await.unwrap() {
            told.push(variant);
        }
    }
    assert_eq!(told, [SMALL, large]);
    tell(&world, vec![replica(SMALL, ReplicaState::Draining, 1), replica(large, ReplicaState::Draining, 4)]);
    tell(&world, vec![replica(SMALL, ReplicaState::Inactive, 1), replica(large, ReplicaState::Draining, 4)]);
    let early = tokio::time::timeout(Duration::from_millis(20), answers.join_next()).await;
    assert!(early.is_err(), "one of them is still there");
    // It left, and a query had it loaded again before anybody looked.
    tell(&world, vec![replica(SMALL, ReplicaState::Inactive, 1), replica(large, ReplicaState::Active, 5)]);
    let got = answers.join_next().await.unwrap().unwrap();
    assert_eq!((got.status.as_u16(), got.json()), (200, json!({})));
}

#[tokio::test]
async fn unloading_names_what_is_not_there_and_asks_no_node_then() {
    let mut world = echoing(Setup::default()).await;
    let one = |version: &str| json!({"parameters": {"version": version}}).to_string();
    assert_eq!(world.post(UNLOAD, "", one("77").as_bytes()).await.status, 404);
    assert_eq!(world.post("/v2/repository/models/none/unload", "", b"").await.status, 404);
    let other = json!({"parameters": {"force": true}}).to_string();
    assert_eq!(world.post(UNLOAD, "", other.as_bytes()).await.refusal(), (400, "malformed".to_owned()));
    assert!(
        std::iter::from_fn(|| world.seen.try_recv().ok()).all(|said| !matches!(said, ToNode::Unload { .. })),
        "nothing of it is asked of a node"
    );
    // The other one is not in memory, so there is nothing to wait for.
    assert_eq!(world.post(UNLOAD, "", one("2").as_bytes()).await.status, 200);
}

#[tokio::test]
async fn what_is_not_known_in_a_request_about_the_repository_is_of_no_account() {
    let world = echoing(Setup::default()).await;
    let more = json!({"ready": true, "repository_name": "", "later": {"more": [1]}}).to_string();
    for (path, status) in [
        ("/v2/repository/index", 200),
        ("/v2/repository/models/fashion/load", 200),
        ("/v2/repository/models/fashion/unload", 200),
    ] {
        let got = world.post(path, "application/json", more.as_bytes()).await;
        assert_eq!(got.status, status, "{path}: {got:?}");
    }
    // What is known is still read.
    let wrong = world.post("/v2/repository/index", "", br#"{"ready": "yes", "later": 1}"#).await;
    assert_eq!(wrong.refusal(), (400, "malformed".to_owned()));
}

#[tokio::test]
async fn no_task_has_the_name_under_which_the_statistics_of_all_stand() {
    let world = World::new().await;
    let task = json!({"name": "stats", "kind": "image-classification", "labels": ["a", "b"]}).to_string();
    let got = world.post("/v1/tasks", "application/json", task.as_bytes()).await;
    assert_eq!(got.status, 400, "{got:?}");
    let said = got.json()["error"].as_str().unwrap().to_owned();
    assert!(said.contains("/v2/models/stats") && said.contains("another"), "{said}");
    let like_it = task.replace("stats", "stats-1");
    assert_eq!(world.post("/v1/tasks", "application/json", like_it.as_bytes()).await.status, 201);
}

#[tokio::test]
async fn settings_of_tracing_and_of_the_log_are_read_as_none_and_set_by_nobody() {
    let world = echoing(Setup::default()).await;
    for path in ["/v2/trace/setting", "/v2/models/arrays/trace/setting", "/v2/logging"] {
        let got = world.get(path).await;
        assert_eq!((got.status.as_u16(), got.json()), (200, json!({})), "{path}");
        for nothing in ["", "{}"] {
            let got = world.post(path, "", nothing.as_bytes()).await;
            assert_eq!((got.status.as_u16(), got.json()), (200, json!({})), "{path}: {nothing}");
        }
        // What is null would be set to its usual value, which is a change too.
        for change in [r#"{"trace_level":["OFF"]}"#, r#"{"log_verbose_level":1}"#, r#"{"trace_rate":null}"#] {
            let got = world.post(path, "application/json", change.as_bytes()).await;
            assert_eq!(got.refusal(), (501, "not_served_here".to_owned()), "{path}: {change}");
        }
        for wrong in ["[]", "null", "{"] {
            let got = world.post(path, "", wrong.as_bytes()).await;
            assert_eq!(got.refusal(), (400, "malformed".to_owned()), "{path}: {wrong}");
        }
    }
    let unknown = "/v2/models/none/trace/setting";
    assert_eq!(world.get(unknown).await.refusal(), (404, "unknown_task".to_owned()));
    assert_eq!(world.post(unknown, "", b"").await.refusal(), (404, "unknown_task".to_owned()));
}
