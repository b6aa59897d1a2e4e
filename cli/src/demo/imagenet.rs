//! `up --demo imagenet`: a ladder of EfficientNet-Lite for photographs.

use super::made::{Fetch, Kind, Recipe};

/// Everything that registering needs is made: the labels and the set's name come from packages, too.
pub(super) const TASKS: [&str; 1] = ["imagenet/made"];

/// One of the labelled set to try it with.
pub(super) const PICTURE: &str = "imagenet/made/set/000.png";

pub(super) const RECIPE: Recipe = Recipe {
    name: "imagenet",
    files: super::files![
        "imagenet/README.md",
        "imagenet/make.py",
        "imagenet/labels.txt",
        "imagenet/tools.txt",
        "imagenet/models.txt",
        "imagenet/data.txt",
        "imagenet/stamps.txt",
    ],
    depends_on: &["make.py", "labels.txt", "tools.txt", "models.txt", "data.txt", "stamps.txt"],
    fetches: &[
        Fetch { what: "tools for ONNX models", list: "tools.txt", bytes: 330 << 20, kind: Kind::Tools },
        Fetch { what: "EfficientNet-Lite", list: "models.txt", bytes: 70 << 20, kind: Kind::Content },
        Fetch {
            what: "photographs and names of classes",
            list: "data.txt",
            bytes: 6 << 20,
            kind: Kind::Content,
        },
        Fetch { what: "pictures of tuxpaint", list: "stamps.txt", bytes: 155 << 20, kind: Kind::Debian },
    ],
    program: "make.py",
};
