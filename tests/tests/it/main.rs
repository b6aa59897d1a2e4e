//! End to end: a real `modelless up --demo` with real runners, over real sockets, asked by raw HTTP, by the command
//! line and by Hugging Face's client; on SQLite and on Postgres. And a cluster of real processes.

mod announced;
mod bad_input;
mod bereft;
mod board;
mod caching;
mod clients;
mod cluster;
mod crashes;
mod data;
mod database;
mod demo;
#[cfg(feature = "demos")]
mod demos;
mod drifting;
mod encrypted;
mod ending;
mod engines;
mod feedback;
mod front_tls;
#[cfg(any(feature = "generator", feature = "torch"))]
mod generating;
mod goals;
mod guide;
mod half_dead;
mod hurried;
mod jobs;
mod keys;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod lifecycle;
mod live;
mod machines;
#[cfg(feature = "moto")]
mod moto;
mod profiling;
mod registering;
#[cfg(feature = "remote")]
mod remote;
mod restarts;
mod sleeping;
mod states;
mod store;
mod strings;
mod texts;
mod traces;
mod trials;
mod trials_of_two;
mod twins;
mod unsteady;
mod versions;
mod what_if;
