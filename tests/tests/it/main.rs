//! End to end: a real `modelless up --demo` with real runners, over real sockets, asked by raw HTTP, by the command
//! line and by Hugging Face's client; on SQLite and on Postgres.

mod clients;
mod crashes;
mod data;
mod database;
mod demo;
mod ending;
mod engines;
mod goals;
mod lifecycle;
mod store;
