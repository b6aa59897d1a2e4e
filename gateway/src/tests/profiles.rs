use super::world::World;
use http::Method;
use modelless_store::Store as _;
use serde_json::{Value, json};

const JSON: &str = "application/json";

async fn import(world: &World, target: &str, file: &Value) -> Value {
    let got = world.ask(Method::POST, target, JSON, file.to_string().as_bytes()).await;
    assert_eq!(got.status, 200, "{got:?}");
    got.json()
}

fn why(answer: &Value) -> &str {
    assert_eq!(answer["imported"], json!([]), "{answer}");
    answer["left_out"][0]["why"].as_str().unwrap()
}

#[tokio::test]
async fn profiles_are_exported_in_full_as_far_as_they_are_asked_for() {
    let world = World::new().await;
    let all = world.get("/v1/profiles").await.json();
    assert_eq!((&all["format"], &all["version"]), (&json!("modelless-profiles"), &json!(1)));
    assert_eq!(all["profiles"].as_array().unwrap().len(), 3);
    let of_task = world.get("/v1/profiles?task=fashion").await.json();
    let names: Vec<&str> =
        of_task["profiles"].as_array().unwrap().iter().map(|one| one["variant"].as_str().unwrap()).collect();
    assert_eq!(names, ["small-fp32", "large-fp32"]);
    assert_eq!(of_task["profiles"][0]["profile"]["latency"][0]["mean_us"], 1_000.0);
    let one = world.get("/v1/profiles?variant=large-fp32").await.json();
    assert_eq!(one["profiles"].as_array().unwrap().len(), 1);
    assert_eq!(world.get("/v1/profiles?device_class=none").await.json()["profiles"], json!([]));
    assert_eq!(
        world.get("/v1/profiles?variant=larg-fp32").await.refusal(),
        (404, "unknown_variant".to_owned())
    );
    assert_eq!(world.get("/v1/profiles?task=none").await.refusal(), (404, "unknown_task".to_owned()));
}

#[tokio::test]
async fn a_profile_is_taken_in_where_it_fits_and_nowhere_else() {
    let world = World::new().await;
    let mut file = world.get("/v1/profiles?variant=small-fp32").await.json();
    assert!(why(&import(&world, "/v1/profiles", &file).await).contains("replace"));
    file["profiles"][0]["profile"]["latency"][0]["mean_us"] = json!(77.0);
    let answer = import(&world, "/v1/profiles?replace=true", &file).await;
    assert_eq!(answer["imported"][0]["variant"], "small-fp32", "{answer}");
    file["profiles"][0]["profile"]["device_class"] = json!("cpu:another:8");
    import(&world, "/v1/profiles", &file).await;
    let catalog = world.store.catalog().await.unwrap();
    let small = catalog.variants.iter().find(|variant| variant.name == "small-fp32").unwrap();
    assert_eq!(small.profiles.len(), 2);
    assert!((small.profile_on("cpu:another:8").unwrap().latency[0].mean_us - 77.0).abs() < 1e-9);

    let left_out = async |change: &dyn Fn(&mut Value)| {
        let mut file = file.clone();
        file["profiles"][0]["profile"]["device_class"] = json!("cpu:third:8");
        change(&mut file["profiles"][0]);
        why(&import(&world, "/v1/profiles", &file).await).to_owned()
    };
    assert!(left_out(&|one| one["artefact_sha256"] = json!("cd".repeat(32))).await.contains("artefact"));
    assert!(left_out(&|one| one["settings"]["threads"] = json!(7)).await.contains("another way"));
    for part in ["adapter", "labels"] {
        let key = format!("{part}_sha256");
        let other = left_out(&|one| one[&key] = json!("cd".repeat(32))).await;
        assert!(other.contains(&format!("here: {part}")), "{other}");
        let unsaid = left_out(&|one| drop(one.as_object_mut().unwrap().remove(&key))).await;
        assert!(unsaid.contains(&format!("with which {part}")), "{unsaid}");
    }
    let other = left_out(&|one| one["tokenizer_sha256"] = json!("cd".repeat(32))).await;
    assert!(other.contains("here: tokenizer"), "{other}");
    let another = left_out(&|one| one["model_version"] = json!(7)).await;
    assert!(another.contains("version 7") && another.contains("of small version 1"), "{another}");
    assert!(left_out(&|one| one["model"] = json!("large")).await.contains("of small version 1"));
    assert!(left_out(&|one| one["profile"]["accuracy"]["samples"] = json!(0)).await.contains("no items"));
    assert!(left_out(&|one| one["variant"] = json!("none")).await.contains("no variant"));
    assert!(left_out(&|one| one["task"] = json!("none")).await.contains("no task"));
    assert!(
        left_out(&|one| one["profile"]["latency_provenance"] = json!("estimated")).await.contains("estimate")
    );
    assert!(left_out(&|one| one["profile"]["latency"] = json!([])).await.contains("no latency"));

    file["version"] = json!(2);
    let got = world.ask(Method::POST, "/v1/profiles", JSON, file.to_string().as_bytes()).await;
    assert_eq!(got.refusal(), (400, "malformed".to_owned()));
}
