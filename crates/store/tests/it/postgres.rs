//! What only a server can suffer.

use crate::backends::{Backend, admin, on_postgres, open_at, server_url};
use modelless_store::{Error, Store, open, open_postgres};
use sqlx::{Connection as _, PgConnection, Row as _};
use std::time::Duration;

fn address(backend: Backend) -> String {
    match backend {
        Backend::At(address) => address,
        Backend::Memory(_) => unreachable!("Postgres is not in memory"),
    }
}

/// Every table with its number of rows.
async fn contents(url: &str) -> Vec<(String, String)> {
    let mut raw = PgConnection::connect(url).await.unwrap();
    let sql = "SELECT table_name::text, (xpath('/row/c/text()', query_to_xml( \
               format('SELECT count(*) AS c FROM %I', table_name), false, true, '')))[1]::text \
               FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1";
    let rows = sqlx::query(sql).fetch_all(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn refuses_a_database_of_a_newer_version() {
    on_postgres(|backend| async move {
        let url = address(backend);
        open_at(&url).await.close().await;
        admin(&url, "INSERT INTO modelless_schema VALUES (999, 'from the future')".to_owned()).await;
        let before = contents(&url).await;
        let error = open(&url).await.unwrap_err();
        assert!(matches!(error, Error::NewerDatabase { found: 999, .. }), "{error}");
        assert_eq!(contents(&url).await, before);
    })
    .await;
}

#[tokio::test]
async fn refuses_a_database_of_another_program() {
    on_postgres(|backend| async move {
        let url = address(backend);
        admin(&url, "CREATE TABLE customers (name TEXT)".to_owned()).await;
        let error = open(&url).await.unwrap_err();
        assert!(matches!(error, Error::NotOurs { .. }) && error.to_string().contains("customers"), "{error}");
        assert_eq!(contents(&url).await, [("customers".to_owned(), "0".to_owned())]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_first_openings_at_once_make_one_database() {
    on_postgres(|backend| async move {
        let url = address(backend);
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let url = url.clone();
            all.spawn(async move { open_at(&url).await.catalog_version().await.unwrap() });
        }
        assert_eq!(all.join_all().await, [0; 6]);
    })
    .await;
}

#[tokio::test]
async fn comes_back_after_the_server_dropped_its_connections() {
    on_postgres(|backend| async move {
        let url = address(backend);
        let store = open_at(&url).await;
        store.catalog().await.unwrap();
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
        admin(&url, sql.to_owned()).await;
        store.catalog().await.expect("a new connection takes the place of a dead one");
    })
    .await;
}

#[tokio::test]
async fn passwords_are_never_shown() {
    // Port 9 (discard) on loopback: refused at once.
    let closed = "postgres://me:geheim@127.0.0.1:9/x?application_name=geheim";
    let wrong = {
        let server = server_url();
        let (scheme, rest) = server.split_once("://").unwrap();
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        format!("{scheme}://nobody:geheim@{place}")
    };
    let unreadable = "postgres://me:geheim@db:port/x";
    let unescaped = "postgres://me:ge/heim#geheim@db:5432/x";
    for address in [closed, &wrong, unreadable, unescaped] {
        let error = open(address).await.expect_err("nobody answers there");
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains("geheim") && !text.contains("heim"), "{text}");
        }
    }
    let error = open_postgres(closed).await.unwrap_err();
    assert!(
        matches!(error, Error::Unreachable { .. }) && error.to_string().contains("127.0.0.1:9"),
        "{error}"
    );
    let error = open_postgres(&wrong).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && error.to_string().contains("nobody"), "{error}");
}

/// On a paused clock, which jumps ahead when nothing is left to do but wait.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_given_up_on() {
    // Takes the connection, and then says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://me@{}/x", silent.local_addr().unwrap());
    let started = tokio::time::Instant::now();
    let error = open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && error.to_string().contains("no answer"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20));
}
