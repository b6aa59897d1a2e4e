//! Small models of texts, as packages to register: what is measured of them takes seconds.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The task of [`vectors`].
pub const VECTORS: &str = "tiny";
/// The task of [`classes`].
pub const CLASSES: &str = "ratings";

/// A small encoder in a folder, with a variant for each of these engines. What each text is to be was computed in Python.
pub fn vectors(root: &Path, folder: &Path, engines: &[&str]) -> Result<()> {
    copy(
        &root.join("crates/adapter/tests/golden/text"),
        folder,
        &["tiny.onnx", "tiny.pt", "tokenizer.json"],
    )?;
    fs::write(
        folder.join("task.toml"),
        format!(
            "name = \"{VECTORS}\"\nkind = \"feature-extraction\"\nmetric = \"nearest\"\n\
             space = {{ name = \"tiny\", dimension = 8 }}\n"
        ),
    )?;
    let variant = |engine: &&str| {
        let file = if *engine == "torch" { "../tiny.pt" } else { "../tiny.onnx" };
        format!(
            "\n[[variants]]\nname = \"{engine}\"\nengine = \"{engine}\"\nprecision = \"fp32\"\nfile = \"{file}\"\n"
        )
    };
    let variants: String = engines.iter().map(variant).collect();
    let model = format!(
        "name = \"tiny\"\naccuracy = 0.9\n\n[adapter]\nkind = \"feature-extraction\"\noutput = \"last_hidden_state\"\n\
         pooling = \"mean\"\nnormalise = true\ndimension = 8\n\n[adapter.tokens]\ntokenizer = \"../tokenizer.json\"\n\
         max = 64\n{variants}"
    );
    Ok(fs::write(folder.join("models/tiny.toml"), model)?)
}

/// The small GRU that tells blame from praise; `batching` as tasks say it.
pub fn classes(root: &Path, folder: &Path, batching: &str) -> Result<()> {
    copy(&root.join("examples/text/gru"), folder, &["model.onnx", "tokenizer.json"])?;
    fs::write(
        folder.join("task.toml"),
        format!(
            "name = \"{CLASSES}\"\nkind = \"text-classification\"\nlabels = [\"blame\", \"praise\"]\nbatching = \"{batching}\"\n"
        ),
    )?;
    let model = "name = \"gru\"\naccuracy = 0.8\nartefact = \"../model.onnx\"\n\n[adapter]\nkind = \"text-classification\"\n\n\
                 [adapter.tokens]\ntokenizer = \"../tokenizer.json\"\nmax = 128\n";
    Ok(fs::write(folder.join("models/gru.toml"), model)?)
}

fn copy(from: &Path, folder: &Path, files: &[&str]) -> Result<()> {
    fs::create_dir_all(folder.join("models"))?;
    for file in files {
        fs::copy(from.join(file), folder.join(file)).with_context(|| format!("copying {file}"))?;
    }
    Ok(())
}
