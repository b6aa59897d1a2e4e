//! A model in a single file: options say what a manifest would.

use crate::exit::usage;
use crate::up;
use clap::Args;
use modelless_adapter::AdapterSpec;
use modelless_profiler::{ModelManifest, VariantManifest, usual_variant_name};
use modelless_types::{Bytes, Engine, Optimisation, Processor};
use serde::Deserialize;
use serde::de::value::{Error as Unreadable, StrDeserializer};
use std::fs;
use std::path::Path;

/// What a manifest would say, for a single ONNX or TorchScript file.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub(super) struct FileOptions {
    /// The model's name. Otherwise that of its file.
    #[arg(long)]
    name: Option<String>,
    /// Its version.
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    /// Its family, such as cnn.
    #[arg(long)]
    architecture: Option<String>,
    /// Its licence.
    #[arg(long)]
    licence: Option<String>,
    /// How the task's input becomes its tensors and its tensors the task's output, as JSON. Otherwise the names of
    /// tensors are the task's.
    #[arg(long, value_name = "JSON")]
    adapter: Option<String>,
    /// The labels that it was trained with, in the order of its outputs, with commas between them; or @FILE with one a line.
    /// They are compared with the task's.
    #[arg(long, value_name = "LABEL,...")]
    labels: Option<String>,
    /// What its accuracy means: compared with the task's.
    #[arg(long)]
    metric: Option<String>,
    /// The output space of its vectors. Otherwise the task's.
    #[arg(long)]
    space: Option<String>,
    /// How accurate it is said to be, 0 to 1, for when there is no labelled set.
    #[arg(long, value_name = "SHARE")]
    accuracy: Option<f64>,
    /// Numbers it computes in. Otherwise fp32.
    #[arg(long)]
    precision: Option<String>,
    /// The library that runs it: onnx, openvino or torch. Otherwise torch for TorchScript, and onnx.
    #[arg(long, value_parser = engine)]
    engine: Option<Engine>,
    /// Threads of one run. With several, such as 1,2, it has a variant with each. Otherwise 1.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,
    /// The largest batch it may be given. Otherwise 32.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_batch: Option<u32>,
    /// How far its graph may be rewritten: off, basic, extended or all. Otherwise all.
    #[arg(long, value_name = "HOW", value_parser = said::<Optimisation>)]
    optimisation: Option<Optimisation>,
    /// What it computes on: cpu, cuda, cuda:N, tensorrt or tensorrt:N. Otherwise cpu.
    #[arg(long, value_parser = said::<Processor>)]
    processor: Option<Processor>,
    /// The most memory of a GPU that one replica takes for each of its streams.
    #[arg(long, value_name = "SIZE", value_parser = up::bytes)]
    gpu_memory: Option<Bytes>,
    /// The most that one item's strings take in one tensor. Otherwise 64KiB.
    #[arg(long, value_name = "SIZE", value_parser = up::bytes)]
    string_bytes: Option<Bytes>,
}

/// As a manifest says it.
fn said<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, String> {
    let read: Result<T, Unreadable> = T::deserialize(StrDeserializer::new(text));
    read.map_err(|error| error.to_string())
}

fn engine(name: &str) -> Result<Engine, String> {
    match said(name)? {
        Engine::Remote => Err("another server runs no file; describe it in a model.toml".to_owned()),
        engine @ (Engine::Onnx | Engine::Openvino | Engine::Torch) => Ok(engine),
    }
}

/// From what stands between commas, or in a file, a line each: labels with commas in them have no other way.
fn labels(text: &str) -> anyhow::Result<Vec<String>> {
    let plain = |label: &str| label.trim().to_owned();
    let Some(file) = text.strip_prefix('@') else { return Ok(text.split(',').map(plain).collect()) };
    let lines = fs::read_to_string(file)
        .map_err(|error| usage(format!("--labels: the file {file} cannot be read: {error}")))?;
    // Some editors begin a file with a mark that nobody sees.
    Ok(lines.trim_start_matches('\u{feff}').trim_end().lines().map(str::to_owned).collect())
}

impl FileOptions {
    /// What says all of that itself takes none of them.
    pub(super) fn refuse(&self) -> anyhow::Result<()> {
        if *self == Self::default() {
            return Ok(());
        }
        Err(usage(
            "options that describe a model are for a single ONNX or TorchScript file; a manifest says all of that itself",
        ))
    }

    pub(super) fn manifest(&self, file: &Path) -> anyhow::Result<ModelManifest> {
        let stem = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let adapter = self.adapter.as_deref().unwrap_or(r#"{"kind": "tensor"}"#);
        let adapter = AdapterSpec::parse(adapter).map_err(|error| usage(format!("--adapter: {error}")))?;
        let name = self.name.clone().unwrap_or_else(stem);
        let mut model = ModelManifest::of_file(name, file.to_owned(), adapter);
        model.version = self.version.unwrap_or(model.version);
        model.architecture = self.architecture.clone().unwrap_or_default();
        model.licence = self.licence.clone().unwrap_or_default();
        model.labels = self.labels.as_deref().map(labels).transpose()?;
        model.metric.clone_from(&self.metric);
        model.space.clone_from(&self.space);
        model.accuracy = self.accuracy;
        let mut variants = Vec::new();
        for usual in &model.variants {
            let variant = self.variant(usual, file);
            if self.threads.is_empty() {
                variants.push(variant);
                continue;
            }
            for &threads in &self.threads {
                let mut variant = VariantManifest { threads, ..variant.clone() };
                if self.threads.len() > 1 {
                    let usual = usual_variant_name(&model.name, model.version, &variant.precision);
                    variant.name = format!("{usual}-t{threads}");
                }
                if variants.contains(&variant) {
                    return Err(usage(format!("--threads: {threads} is there twice")));
                }
                variants.push(variant);
            }
        }
        model.variants = variants;
        model.told().map_err(|error| usage(error.to_string()))
    }

    fn variant(&self, usual: &VariantManifest, file: &Path) -> VariantManifest {
        let torchscript = file.extension().is_some_and(|end| end.eq_ignore_ascii_case("pt"));
        VariantManifest {
            engine: self.engine.unwrap_or(if torchscript { Engine::Torch } else { usual.engine }),
            precision: self.precision.clone().unwrap_or_else(|| usual.precision.clone()),
            max_batch: self.max_batch.unwrap_or(usual.max_batch),
            optimisation: self.optimisation.unwrap_or(usual.optimisation),
            processor: self.processor.unwrap_or(usual.processor),
            gpu_memory: self.gpu_memory,
            string_bytes: self.string_bytes,
            ..usual.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use modelless_testkit::temp_dir;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        file: FileOptions,
    }

    fn read(options: &[&str]) -> Result<FileOptions, String> {
        let line = Line::try_parse_from([&["register"], options].concat());
        line.map(|line| line.file).map_err(|error| error.to_string())
    }

    fn manifest(file: &str, options: &[&str]) -> Result<ModelManifest, String> {
        read(options)?.manifest(Path::new(file)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_say_what_a_manifest_says() {
        let folder = temp_dir("file-options").unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(at("labels.txt"), "\u{feff}tench, Tinca tinca\r\ncat\n").unwrap();
        let settings = "engine = \"openvino\"\nprecision = \"int8\"\nfile = \"net.onnx\"\nmax_batch = 8\n\
                        optimisation = \"basic\"\nprocessor = \"cuda:1\"\ngpu_memory = 1048576\nstring_bytes = 512\n";
        let text = format!(
            "name = \"net\"\nversion = 2\narchitecture = \"cnn\"\nlicence = \"MIT\"\nspace = \"ours\"\naccuracy = 0.5\n\
             metric = \"nearest\"\nlabels = [\"tench, Tinca tinca\", \"cat\"]\n[adapter]\nkind = \"tensor\"\n\
             [[variants]]\nname = \"net.v2-int8-t1\"\nthreads = 1\n{settings}\
             [[variants]]\nname = \"net.v2-int8-t4\"\nthreads = 4\n{settings}"
        );
        fs::write(at("model.toml"), text).unwrap();
        let written = ModelManifest::read(Path::new(&at("model.toml"))).unwrap();
        let labels = format!("@{}", at("labels.txt"));
        let mut options =
            vec!["--version", "2", "--architecture", "cnn", "--licence", "MIT", "--space", "ours"];
        options.extend(["--accuracy", "0.5", "--metric", "nearest", "--labels", &labels, "--threads", "1,4"]);
        options.extend(["--engine", "openvino", "--precision", "int8", "--max-batch", "8"]);
        options.extend(["--optimisation", "basic", "--processor", "cuda:1", "--gpu-memory", "1MiB"]);
        options.extend(["--string-bytes", "512"]);
        let told = manifest(&at("net.onnx"), &options).unwrap();
        let said = |model: &ModelManifest| {
            let ModelManifest { name, task, version, architecture, licence, owner, space, .. } =
                model.clone();
            let texts = (name, task, version, architecture, licence, owner, space);
            let ModelManifest { accuracy, labels, metric, adapter, artefact, variants, .. } = model.clone();
            (texts, accuracy, labels, metric, adapter, artefact, variants)
        };
        assert_eq!(said(&told), said(&written));
    }

    #[test]
    fn what_is_left_out_is_as_in_a_manifest_that_leaves_it_out() {
        let folder = temp_dir("file-options").unwrap();
        let path = folder.path().join("model.toml");
        fs::write(&path, "name = \"net\"\nartefact = \"net.onnx\"\n[adapter]\nkind = \"tensor\"\n").unwrap();
        let written = ModelManifest::read(&path).unwrap();
        let told = manifest(folder.path().join("net.onnx").to_str().unwrap(), &[]).unwrap();
        assert_eq!((told.version, &told.variants), (written.version, &written.variants));
        assert_eq!(manifest("net.PT", &[]).unwrap().variants[0].engine, Engine::Torch);
        let one = manifest("net.onnx", &["--threads", "2", "--labels", "cat, dog"]).unwrap();
        assert_eq!((one.variants[0].name.as_str(), one.variants[0].threads), ("net-fp32", 2));
        assert_eq!(one.labels.unwrap(), ["cat", "dog"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_option() {
        for (options, words) in [
            (["--threads", "1,0"], "0 is not in 1.."),
            (["--threads", "2,1,2"], "2 is there twice"),
            (["--max-batch", "0"], "0 is not in 1.."),
            (["--labels", "@/nowhere"], "the file /nowhere cannot be read"),
            (["--accuracy", "93"], "between 0 and 1"),
            (["--accuracy", "NaN"], "between 0 and 1"),
            (["--adapter", "{}"], "kind"),
            (["--engine", "tensorflow"], "`onnx`"),
            (["--engine", "remote"], "model.toml"),
            (["--optimisation", "most"], "`extended`"),
            (["--processor", "tpu"], "cuda:N"),
            (["--gpu-memory", "lots"], "no size"),
            (["--string-bytes", "-"], "no size"),
        ] {
            let error = manifest("net.onnx", &options).unwrap_err();
            assert!(error.contains(options[0]) && error.contains(words), "{options:?}: {error}");
        }
    }

    #[test]
    fn a_manifest_takes_none_of_them() {
        read(&[]).unwrap().refuse().unwrap();
        for options in [["--name", "n"], ["--threads", "1"], ["--labels", "a"], ["--string-bytes", "1"]] {
            let error = read(&options).unwrap().refuse().unwrap_err().to_string();
            assert!(error.contains("a manifest says all of that itself"), "{options:?}: {error}");
        }
    }
}
