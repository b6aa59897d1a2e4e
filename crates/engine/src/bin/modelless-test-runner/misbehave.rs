//! What a library or a model can do to its own process, and what a runner that was taken over can say.

use std::io::Write;

/// Does it, where a model should be loaded. Most of it never returns.
pub(crate) fn run(how: &str) -> String {
    match how {
        "abort" => std::process::abort(),
        "hang" => loop {
            std::thread::park();
        },
        // Without end, and without ever answering.
        "print" => loop {
            if writeln!(std::io::stderr(), "{}", "so much to say ".repeat(64)).is_err() {
                return "nobody listens".to_owned();
            }
        },
        // Answers that nobody asked for (behind the version of the control protocol), as fast as they are taken.
        "babble" => {
            while rustix::io::write(std::io::stdin(), b"\x06\"Done\"").is_ok() {}
            "nobody listens".to_owned()
        }
        "threads" => {
            let mut started = 0;
            while std::thread::Builder::new().stack_size(16 << 10).spawn(std::thread::park).is_ok() {
                started += 1;
            }
            format!("{started} threads")
        }
        "starve" => format!("{} bytes", std::hint::black_box(vec![1_u8; 64 << 30]).len()),
        other => format!("`{other}` is unknown"),
    }
}
