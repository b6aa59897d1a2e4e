//! End-to-end tests stand in `tests/it`; this crate has nothing else.
