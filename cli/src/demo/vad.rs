//! `up --demo vad`: whether somebody speaks, piece by piece, with the state in the client's hands.

use super::made::{Fetch, Kind, Recipe};

pub(super) const TASKS: [&str; 1] = ["vad/made"];

pub(super) const CLIENT: &str = "vad/stream.py";

pub(super) const RECIPE: Recipe = Recipe {
    name: "vad",
    files: super::files![
        "vad/README.md",
        "vad/make.py",
        "vad/stream.py",
        "vad/task.toml",
        "vad/tools.txt",
        "vad/models.txt",
    ],
    depends_on: &["make.py", "task.toml", "tools.txt", "models.txt"],
    fetches: &[
        Fetch { what: "tools for ONNX models", list: "tools.txt", bytes: 330 << 20, kind: Kind::Tools },
        Fetch { what: "silero-vad", list: "models.txt", bytes: 22 << 20, kind: Kind::Content },
    ],
    program: "make.py",
};
