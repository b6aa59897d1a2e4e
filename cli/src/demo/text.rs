//! `up --demo text`: two sentence encoders, heads that tell praise from blame, and a small recurrent model that does so too.

use super::made::{Fetch, Kind, Recipe};

pub(super) const TASKS: [&str; 2] = ["text/sentences", "text/ratings"];

pub(super) const RECIPE: Recipe = Recipe {
    name: "text",
    files: super::files![
        "text/README.md",
        "text/make.py",
        "text/tools.txt",
        "text/models.txt",
        "text/data.txt",
        "text/sentences/task.toml",
        "text/sentences/models/all-minilm-l6-v2.toml",
        "text/sentences/models/paraphrase-minilm-l3-v2.toml",
        "text/gru/train.py",
        "text/gru/model.onnx",
        "text/gru/tokenizer.json",
        "text/ratings/task.toml",
        "text/ratings/models/all-minilm-l6-v2-rating.toml",
        "text/ratings/models/gru-rating.toml",
        "text/ratings/models/paraphrase-minilm-l3-v2-rating.toml",
    ],
    depends_on: &["make.py", "tools.txt", "models.txt", "data.txt"],
    fetches: &[
        Fetch { what: "tools for ONNX models", list: "tools.txt", bytes: 330 << 20, kind: Kind::Tools },
        Fetch { what: "the sentence encoders", list: "models.txt", bytes: 330 << 20, kind: Kind::Content },
        Fetch { what: "rated sentences", list: "data.txt", bytes: 3 << 20, kind: Kind::Source },
    ],
    program: "make.py",
};
