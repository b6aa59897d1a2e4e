//! What only a file can suffer.

use crate::backends::open_at;
use crate::samples::{a_task, model};
use modelless_store::{
    EVENTS_KEPT, Error, EventKind, FEEDBACK_KEPT, Feedback, Kept, NewEvent, NewModel, PlanId, SavePlan,
    Signed, Store, UnixMicros, open, open_sqlite,
};
use modelless_types::{Engine, Model, VariantId, VariantSettings};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, Row as _};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A database with something in it, closed.
async fn filled(folder: &Path) -> PathBuf {
    let path = folder.join("store.db");
    let store = open_sqlite(&path).await.unwrap();
    let fashion = a_task(&store).await;
    store.register_model(model(fashion.id, "m", &["v"])).await.unwrap();
    store.close().await;
    path
}

async fn change(path: &Path, sql: &'static str) {
    let mut raw = SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap();
    raw.execute(sqlx::raw_sql(sql)).await.unwrap();
    raw.close().await.unwrap();
}

/// Opening fails, and leaves every byte as it was.
async fn fails(path: &Path) -> Error {
    let before = fs::read(path).unwrap();
    let error = open_sqlite(path).await.expect_err("this must not open");
    assert_eq!(fs::read(path).unwrap(), before, "the file was touched");
    assert!(error.to_string().contains(&path.display().to_string()), "names the file: {error}");
    error
}

#[tokio::test]
async fn refuses_a_database_of_a_newer_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    change(&path, "INSERT INTO modelless_schema (version, name) VALUES (999, 'from the future')").await;
    let error = fails(&path).await;
    assert!(matches!(error, Error::NewerDatabase { found: 999, known: 1..999, .. }), "{error}");
    assert!(error.to_string().contains("newer program"), "{error}");
}

#[tokio::test]
async fn a_database_of_the_first_version_is_brought_up_to_date_and_keeps_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let store = open_sqlite(&path).await.unwrap();
    let task = store.catalog().await.unwrap().tasks[0].id;
    // The newest was not registered last.
    for version in [7, 5] {
        let variant = format!("many-{version}");
        store.register_model(NewModel { version, ..model(task, "many", &[&variant]) }).await.unwrap();
    }
    let before = store.catalog().await.unwrap();
    store.close().await;
    change(&path, "ALTER TABLE models DROP COLUMN owner").await;
    change(&path, "ALTER TABLE models DROP COLUMN promoted").await;
    change(&path, "DROP TABLE version_changes").await;
    change(&path, "DROP TABLE measured").await;
    change(&path, "DELETE FROM counters WHERE name IN ('version_changes', 'measured')").await;
    change(&path, "ALTER TABLE tasks DROP COLUMN batching").await;
    change(&path, "ALTER TABLE tasks DROP COLUMN accuracy_rule").await;
    change(&path, "ALTER TABLE tasks DROP COLUMN live_accuracy").await;
    change(&path, "ALTER TABLE tasks DROP COLUMN declared_accuracy").await;
    change(&path, "ALTER TABLE tasks DROP COLUMN cache; ALTER TABLE tasks DROP COLUMN keep; ALTER TABLE tasks DROP COLUMN ahead").await;
    change(&path, "DROP TABLE stale_marks; DROP TABLE feedback; DROP TABLE live_accuracies").await;
    change(&path, "DROP TABLE flag_changes").await;
    change(&path, "DROP TABLE node_holders; DROP TABLE events").await;
    change(
        &path,
        "DELETE FROM counters WHERE name IN ('feedback', 'feedback_kept', 'flag_changes', 'events')",
    )
    .await;
    change(&path, "DROP TABLE measurings").await;
    change(&path, "DROP TABLE evidence").await;
    change(&path, "DROP TABLE api_keys; DROP TABLE model_grants; DROP TABLE audit; DROP TABLE uploads").await;
    change(&path, "ALTER TABLE tenants DROP COLUMN quota; ALTER TABLE apps DROP COLUMN quota").await;
    change(&path, "DELETE FROM counters WHERE name IN ('tenants', 'apps', 'api_keys', 'audit')").await;
    change(&path, "DROP TABLE machines; DROP TABLE machine_changes; DROP TABLE pools").await;
    change(&path, "DELETE FROM counters WHERE name IN ('machines', 'machine_changes')").await;
    change(&path, "DROP TABLE jobs; DROP TABLE job_inputs; DROP TABLE job_bodies; DROP TABLE job_outputs")
        .await;
    change(&path, "DELETE FROM counters WHERE name IN ('jobs', 'job_inputs', 'trials', 'asked')").await;
    change(&path, "DROP TABLE trials; DROP TABLE policies; DROP TABLE asked_slots; DROP TABLE asked_bins")
        .await;
    change(&path, "DELETE FROM modelless_schema WHERE version > 1").await;
    let after = open_sqlite(&path).await.unwrap().catalog().await.unwrap();
    assert!(!after.tasks.is_empty() && after.tasks.iter().all(|task| task.batching.is_none()));
    assert!(after.tasks.iter().all(|task| task.cache == modelless_types::CacheFor::OFF));
    assert!(after.tasks.iter().all(|task| task.keep == modelless_types::KeepFor::ALWAYS));
    let plain = |models: &[Model]| -> Vec<Model> {
        models.iter().map(|model| Model { promoted: 0, ..model.clone() }).collect()
    };
    assert_eq!((plain(&after.models), &after.variants), (plain(&before.models), &before.variants));
    let of_many = |model: &&Model| model.name == "many" && after.defaults().contains(&model.id);
    let answers: Vec<u32> = after.models.iter().filter(of_many).map(|model| model.version).collect();
    assert_eq!(answers, [7], "the newest answers");
    let newest = after.models.iter().find(|model| model.version == 7).unwrap().id;
    let back = open_sqlite(&path).await.unwrap().roll_back(newest, Signed::default()).await.unwrap();
    assert_eq!(back.after, Some(5), "and the one before it is gone back to");
}

#[tokio::test]
async fn a_variant_from_before_there_were_other_engines_reads_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let before =
        r#"UPDATE variants SET settings = '{"engine":"onnx","precision":"int8","threads":3,"max_batch":9}'"#;
    change(&path, before).await;
    let store = open_sqlite(&path).await.unwrap();
    let settings = store.catalog().await.unwrap().variants[0].settings.clone();
    assert_eq!(settings, VariantSettings { threads: 3, ..VariantSettings::new(Engine::Onnx, "int8", 9) });
}

#[tokio::test]
async fn an_engine_that_only_a_newer_program_knows_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let newer =
        r#"UPDATE variants SET settings = '{"engine":"tpu","precision":"int8","threads":3,"max_batch":9}'"#;
    change(&path, newer).await;
    let store = open_sqlite(&path).await.unwrap();
    let error = store.catalog().await.unwrap_err().to_string();
    assert!(error.contains("`tpu`") && error.contains("`remote`"), "{error}");
}

#[tokio::test]
async fn refuses_a_damaged_file_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let good = fs::read(&path).unwrap();
    let page = 4_096;
    assert!(good.len() > 4 * page);

    let mut garbage_inside = good.clone();
    garbage_inside[2 * page..good.len() - page].fill(0xa5);
    let mut garbage_schema = good.clone();
    garbage_schema[100..page].fill(0xff);
    let cut_off = good[..good.len() / 2].to_vec();
    let no_head = [b"not a database".repeat(9), good[126..].to_vec()].concat();
    let tiny = b"SQLite f".to_vec();
    for (what, bytes) in [
        ("garbage inside", garbage_inside),
        ("garbage schema", garbage_schema),
        ("cut off", cut_off),
        ("no head", no_head),
        ("tiny", tiny),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = fails(&path).await;
        assert!(matches!(error, Error::Corrupt { .. }), "{what}: {error}");
        assert!(error.to_string().contains("backup"), "{what}: {error}");
    }
    fs::write(&path, good).unwrap();
    assert_eq!(open_sqlite(&path).await.unwrap().catalog().await.unwrap().models.len(), 1);
}

#[tokio::test]
async fn refuses_a_file_of_another_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("browser-history.db");
    change(&path, "CREATE TABLE visits (url TEXT); INSERT INTO visits VALUES ('x')").await;
    let error = fails(&path).await;
    assert!(matches!(error, Error::NotOurs { .. }), "{error}");
    assert!(error.to_string().contains("visits"), "{error}");
}

#[tokio::test]
async fn a_folder_or_a_place_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = open_sqlite(folder.path()).await.unwrap_err();
    assert!(matches!(error, Error::NotOurs { .. }), "{error}");
    let error = open_sqlite(folder.path().join("no/such/folder.db")).await.unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("no/such"), "{error}");
}

#[tokio::test]
async fn stored_nonsense_is_an_error_and_not_a_guess() {
    for (sql, word) in [
        ("UPDATE tasks SET kind = 'telepathy'", "telepathy"),
        ("UPDATE profiles SET body = '{'", "document"),
        ("UPDATE variants SET ordinal = 256", "256"),
        ("UPDATE spaces SET hash = NULL", "fashion"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = filled(folder.path()).await;
        change(&path, sql).await;
        let error = open_sqlite(&path).await.unwrap().catalog().await.expect_err(sql);
        assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains(word), "{sql}: {error}");
    }
}

#[tokio::test]
async fn what_was_committed_is_there_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_sqlite(folder.path().join("store.db")).await.unwrap();
    let saved = store.save_plan(None, "{}".to_owned(), UnixMicros(1)).await.unwrap();
    assert_eq!(saved, SavePlan::Saved(PlanId(1)));
    // What a killed process leaves: the file and its log, not folded together. The shared-memory index may be
    // there or, after a loss of power, not.
    for files in [&["store.db", "store.db-wal"][..], &["store.db", "store.db-wal", "store.db-shm"]] {
        let crashed = tempfile::tempdir().unwrap();
        for file in files {
            fs::copy(folder.path().join(file), crashed.path().join(file)).unwrap();
        }
        let again = open_sqlite(crashed.path().join("store.db")).await.unwrap();
        assert_eq!(again.current_plan().await.unwrap().unwrap().id, PlanId(1));
    }
}

#[tokio::test]
async fn the_file_holds_keys_and_is_its_owners_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open_sqlite(&path).await.unwrap();
    store.secret("k", [1; 32]).await.unwrap();
    for file in ["store.db", "store.db-wal"] {
        let mode = fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_first_openings_at_once_make_one_database() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("store.db").display().to_string();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let address = address.clone();
        all.spawn(async move { open_at(&address).await.catalog_version().await.unwrap() });
    }
    assert_eq!(all.join_all().await, [0; 6]);
}

#[tokio::test]
async fn an_address_says_which_database_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db").display().to_string();
    for address in [path.clone(), format!("sqlite:{path}"), format!("sqlite://{path}")] {
        assert_eq!(open(&address).await.unwrap().describe(), path);
    }
    for address in ["", "sqlite:", "mysql://me:geheim@db/x"] {
        let error = open(address).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("geheim"), "{error}");
    }
}

#[tokio::test]
async fn how_many_verdicts_are_kept_is_known_without_counting_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open_sqlite(&path).await.unwrap();
    let task = a_task(&store).await;
    let models = [("a", "va"), ("b", "vb")];
    let mut known = Vec::new();
    for (name, variant) in models {
        let registered = store.register_model(model(task.id, name, &[variant])).await.unwrap();
        known.push((registered.model.id, registered.variants[0].id));
    }
    let say = async |variant: VariantId, from: u64, to: u64, expired: u64| {
        let said = |at: u64| Feedback {
            query: format!("query {at}"),
            variant,
            answered: UnixMicros(at),
            correct: true,
        };
        let given = (from..to).map(said).collect();
        let stored = store.put_feedback(given, UnixMicros(expired)).await.unwrap();
        stored.iter().filter(|verdict| verdict.kept == Kept::New).count()
    };
    let counted = async || {
        let sql = "SELECT (SELECT value FROM counters WHERE name = 'feedback_kept'), (SELECT count(*) FROM feedback)";
        let mut raw = SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
        let row = sqlx::query(sql).fetch_one(&mut raw).await.unwrap();
        raw.close().await.unwrap();
        let (known, there): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(known, there);
        there
    };
    assert_eq!(say(known[0].1, 0, 300, 0).await, 300);
    assert_eq!(say(known[1].1, 300, 400, 0).await, 100);
    assert_eq!(counted().await, 400);
    // What is too old goes a little at a time.
    assert_eq!(say(known[1].1, 400, 401, 300).await, 1);
    assert_eq!(counted().await, 401 - 66);
    store.remove_model(known[0].0, true, Signed::default()).await.unwrap();
    assert_eq!(counted().await, 101);
    assert_eq!(FEEDBACK_KEPT, 1_000_000);
    change(&path, "UPDATE counters SET value = 1000000 WHERE name = 'feedback_kept'").await;
    assert_eq!(say(known[1].1, 500, 510, 0).await, 0, "it goes by the counter");
    assert_eq!(say(known[1].1, 500, 510, 400).await, 10, "what is too old makes room");
}

#[tokio::test]
async fn only_the_latest_events_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open_sqlite(&path).await.unwrap();
    let event = |n| NewEvent {
        kind: EventKind::Plan,
        node: None,
        variant: None,
        task: None,
        what: "saved".into(),
        cause: String::new(),
        who: String::new(),
        at: UnixMicros(n),
    };
    store.note_event(event(1)).await.unwrap();
    // As if nearly as many had come since as are kept.
    change(&path, "UPDATE counters SET value = 9999 WHERE name = 'events'").await;
    let seq = store.note_event(event(2)).await.unwrap().seq;
    assert_eq!((seq, store.events(Some(0), 9).await.unwrap().len()), (EVENTS_KEPT, 2));
    store.note_event(event(3)).await.unwrap();
    let kept = store.events(Some(0), 9).await.unwrap();
    assert_eq!(kept.iter().map(|event| event.about.at.0).collect::<Vec<_>>(), [2, 3]);
}
