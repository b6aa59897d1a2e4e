//! What every store must do, whatever it keeps things in: each function here runs on each backend.

mod access;
mod audit;
mod bins;
mod catalog;
mod events;
mod fleet;
mod jobs;
mod learnt;
mod machines;
mod measuring;
mod plans;
mod trials;
mod versions;

use modelless_store::Error;

/// Runs each of these functions on each backend.
macro_rules! store_suite {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { crate::backends::on_memory(super::$name).await; })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { crate::backends::on_sqlite(super::$name).await; })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { crate::backends::on_postgres(super::$name).await; })*
        }
    };
}

use store_suite;

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("nonsense");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}

pub(crate) fn missing<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("nothing of that name");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}
