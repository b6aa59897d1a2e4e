//! The store on all its backends. Postgres is a real one; `cargo xtask test` starts it.
#![expect(
    clippy::unwrap_used,
    reason = "tests: clippy sees only functions marked #[test] as such, not their helpers"
)]

mod artefacts;
mod backends;
mod data_dir;
mod postgres;
mod samples;
mod sqlite;
mod suite;
