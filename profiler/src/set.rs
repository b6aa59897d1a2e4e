//! Labelled data, in the form in which a task's queries come: pictures as PNG or JPEG files, tensors as raw bytes.

use crate::error::Error;
use crate::idx;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use modelless_types::{DType, Task, TaskKind};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Inputs of a task with the class that each is known to be.
#[derive(Clone, Debug)]
pub struct LabelledSet {
    name: String,
    items: Vec<(Item, usize)>,
}

#[derive(Clone, Debug)]
enum Item {
    Here(Bytes),
    File(PathBuf),
}

impl LabelledSet {
    /// Opens a set for a task. `path` is one of
    ///
    /// * `NAME-images-idx3-ubyte`, or that with `.gz`, with the labels in `NAME-labels-idx1-ubyte` beside it: the form of
    ///   Fashion-MNIST. Labels are positions in the task's labels. For a `tensor` task pixels become numbers between 0
    ///   and 1 (`FP32`) or stay bytes (`UINT8`);
    /// * a `.jsonl` file, or `.jsonl.gz`: one object `{"label", "input"}` a line, the input in base64, or
    ///   `{"label", "text"}`. What [`LabelledSet::pack`] writes;
    /// * a `.csv` file with lines `FILE,LABEL`: files relative to it, labels as the task writes them or their positions.
    pub fn open(path: &Path, name: &str, task: &Task) -> Result<Self, Error> {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if file.ends_with(".jsonl") || file.ends_with(".jsonl.gz") {
            let read = |source| Error::Read { path: path.to_owned(), source };
            return Self::unpack(File::open(path).map_err(read)?, path, name, task);
        }
        is_counted(path, task)?;
        let items = if file.ends_with(".csv") { from_csv(path, task)? } else { from_idx(path, name, task)? };
        Self::of(items, path, name)
    }

    fn of(items: Vec<(Item, usize)>, path: &Path, name: &str) -> Result<Self, Error> {
        if items.is_empty() {
            return Err(Error::Set { path: path.to_owned(), why: "it is empty".to_owned() });
        }
        Ok(Self { name: name.to_owned(), items })
    }

    /// Some of its items, under a name that says so.
    pub(crate) fn part(&self, items: &[usize], name: String) -> Self {
        Self { name, items: items.iter().map(|item| self.items[*item].clone()).collect() }
    }

    #[cfg(test)]
    pub(crate) fn of_bytes(name: &str, items: impl IntoIterator<Item = (Bytes, usize)>) -> Self {
        let items = items.into_iter().map(|(input, class)| (Item::Here(input), class)).collect();
        Self { name: name.to_owned(), items }
    }

    /// Reads what [`LabelledSet::pack`] wrote, gzipped or not; `path` is for messages.
    pub fn unpack(file: File, path: &Path, name: &str, task: &Task) -> Result<Self, Error> {
        is_counted(path, task)?;
        let read = |source| Error::Read { path: path.to_owned(), source };
        let mut file = BufReader::new(file);
        let gzipped = file.fill_buf().map_err(read)?.starts_with(&[0x1f, 0x8b]);
        let items = if gzipped {
            from_lines(BufReader::new(GzDecoder::new(file)), path, task)
        } else {
            from_lines(file, path, task)
        };
        Self::of(items?, path, name)
    }

    /// The whole set in one piece, for sending it elsewhere.
    pub fn pack(&self) -> Result<Vec<u8>, Error> {
        let mut packed = Vec::new();
        let read = self.packing().read_to_end(&mut packed);
        read.map_err(|source| Error::Read { path: self.name().into(), source })?;
        Ok(packed)
    }

    /// The same piece by piece, as it is read.
    pub(crate) fn packing(&self) -> impl Read {
        Packing {
            set: self,
            next: 0,
            out: Some(GzEncoder::new(Vec::new(), Compression::fast())),
            ready: VecDeque::new(),
        }
    }

    /// Whether [`LabelledSet::unpack`] would read what is packed.
    pub(crate) fn can_be_unpacked(&self) -> Result<bool, Error> {
        let mut bytes = 0;
        for (item, _) in &self.items {
            bytes += BESIDES as u64;
            bytes += match item {
                Item::Here(bytes) => bytes.len() as u64,
                Item::File(path) => {
                    let about = fs::metadata(path);
                    about.map_err(|source| Error::Read { path: path.clone(), source })?.len()
                }
            };
        }
        Ok(bytes <= MAX_BYTES as u64)
    }

    fn line(&self, item: usize) -> Result<String, Error> {
        let input = self.input(item)?;
        let label = Label::Class(self.class(item));
        // Texts stay readable; whatever is none is encoded.
        let line = match std::str::from_utf8(&input) {
            Ok(text) => Line { label, input: None, text: Some(text.to_owned()) },
            Err(_) => Line { label, input: Some(BASE64.encode(&input)), text: None },
        };
        Ok(serde_json::to_string(&line).expect("a line is plain data; this is a bug"))
    }

    /// What it is called where its figures are shown.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many items it has.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Never: an empty set is refused.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// An item as a query would bring it.
    pub(crate) fn input(&self, item: usize) -> Result<Bytes, Error> {
        match &self.items[item].0 {
            Item::Here(bytes) => Ok(bytes.clone()),
            Item::File(path) => {
                fs::read(path).map(Bytes::from).map_err(|source| Error::Read { path: path.clone(), source })
            }
        }
    }

    /// The class an item is known to be.
    pub(crate) fn class(&self, item: usize) -> usize {
        self.items[item].1
    }
}

/// A set that is packed while it is read: no more of it is in memory than a few items.
struct Packing<'a> {
    set: &'a LabelledSet,
    next: usize,
    /// `None` once all of it went in.
    out: Option<GzEncoder<Vec<u8>>>,
    ready: VecDeque<u8>,
}

impl Read for Packing<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.ready.is_empty() {
            let Some(mut out) = self.out.take() else { return Ok(0) };
            if self.next == self.set.len() {
                self.ready = out.finish()?.into();
                continue;
            }
            writeln!(out, "{}", self.set.line(self.next).map_err(io::Error::other)?)?;
            self.next += 1;
            self.ready = std::mem::take(out.get_mut()).into();
            self.out = Some(out);
        }
        self.ready.read(into)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    label: Label,
    /// In base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    /// As it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// What is counted would be shown as what the task says its accuracy is.
fn is_counted(path: &Path, task: &Task) -> Result<(), Error> {
    if COUNTED.contains(&task.metric.as_str()) {
        return Ok(());
    }
    let why = format!(
        "the metric of the task {:?} is {:?}, which is not measured here; it can be declared with the model (`accuracy`) instead of a \
         labelled set, or the task's metric be one of those that are: {}",
        task.name,
        task.metric,
        COUNTED.join(", ")
    );
    Err(Error::Set { path: path.to_owned(), why })
}

/// By its position in the task's labels, or as the task writes it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Label {
    Class(usize),
    Name(String),
}

/// Larger sets are refused rather than read into memory.
const MAX_BYTES: usize = 1 << 30;
/// What an item takes besides its input. A file of a few megabytes can hold a hundred million empty ones.
const BESIDES: usize = 64;
/// What is counted on a labelled set: whether the answer is the label, and for vectors whether the nearest other item has the same one.
const COUNTED: [&str; 4] = ["top-1", "accuracy", "nearest", "agreement"];

fn from_lines(lines: impl BufRead, path: &Path, task: &Task) -> Result<Vec<(Item, usize)>, Error> {
    from_lines_within(MAX_BYTES, lines, path, task)
}

fn from_lines_within(
    most: usize,
    lines: impl BufRead,
    path: &Path,
    task: &Task,
) -> Result<Vec<(Item, usize)>, Error> {
    let (mut items, mut own) = (Vec::new(), BTreeMap::<String, usize>::new());
    let mut held = 0;
    // One line may be as long as all of them together, and no longer.
    for (number, line) in lines.take(2 * MAX_BYTES as u64).lines().enumerate() {
        let fault =
            |why: String| Error::Set { path: path.to_owned(), why: format!("line {}: {why}", number + 1) };
        let line = line.map_err(|error| fault(error.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&line).map_err(|error| fault(error.to_string()))?;
        let class = match line.label {
            Label::Class(class) => Some(class).filter(|class| fits(*class, task)),
            // What belongs together is all that such labels say, so the set has its own.
            Label::Name(name) if task.kind == TaskKind::FeatureExtraction => {
                let next = own.len();
                held += name.len() + BESIDES;
                Some(*own.entry(name).or_insert(next))
            }
            Label::Name(name) => task.labels.iter().position(|known| *known == name),
        };
        let class = class.ok_or_else(|| fault("its label is none of the task's".to_owned()))?;
        let input = match (line.input, line.text) {
            (Some(input), None) => {
                let decoded = BASE64.decode(input);
                decoded.map_err(|error| fault(format!("its input is not base64: {error}")))?
            }
            (None, Some(text)) => text.into_bytes(),
            (None, None) | (Some(_), Some(_)) => {
                return Err(fault("expected either `input`, in base64, or `text`".to_owned()));
            }
        };
        held += input.len() + BESIDES;
        if held > most {
            return Err(fault(format!(
                "the items so far have more than the {most} bytes that are read, {BESIDES} of each for itself"
            )));
        }
        items.push((Item::Here(input.into()), class));
    }
    Ok(items)
}

fn from_csv(path: &Path, task: &Task) -> Result<Vec<(Item, usize)>, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| {
            let fault = |why: &str| Error::Set {
                path: path.to_owned(),
                why: format!("line {}: {why}: {line:?}", number + 1),
            };
            // The last comma: files may have some in their names, labels of a sensible task do not.
            let (file, label) = line.rsplit_once(',').ok_or_else(|| fault("expected FILE,LABEL"))?;
            let label = label.trim();
            let named = task.labels.iter().position(|known| known == label);
            let class = named.or_else(|| label.parse().ok().filter(|class| fits(*class, task)));
            let class = class.ok_or_else(|| fault("this label is none of the task's"))?;
            Ok((Item::File(folder.join(file.trim())), class))
        })
        .collect()
}

/// Whether the task has a class of this number; what a tensor task's outputs mean is not known here.
fn fits(class: usize, task: &Task) -> bool {
    match task.kind {
        // Labels of such a set say what belongs together, and nothing else.
        TaskKind::Tensor | TaskKind::FeatureExtraction => true,
        TaskKind::ImageClassification | TaskKind::TextClassification => class < task.labels.len(),
    }
}

fn from_idx(path: &Path, name: &str, task: &Task) -> Result<Vec<(Item, usize)>, Error> {
    let fault = |path: &Path, why: String| Error::Set { path: path.to_owned(), why };
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    if !file.contains("images-idx3") {
        let expected = "expected a file named *images-idx3-ubyte or *images-idx3-ubyte.gz, or a .csv file";
        return Err(fault(path, expected.to_owned()));
    }
    let labels_path = path.with_file_name(file.replace("images-idx3", "labels-idx1"));
    let images = idx::read_file(path, 3).map_err(|why| fault(path, why))?;
    let labels = idx::read_file(&labels_path, 1).map_err(|why| fault(&labels_path, why))?;
    let (count, height, width) = (images.shape[0], images.shape[1], images.shape[2]);
    if labels.data.len() != count || height == 0 || width == 0 {
        let why =
            format!("it has {count} images of {width}x{height} pixels and {} labels", labels.data.len());
        return Err(fault(path, why));
    }
    let mismatch = |why: String| Error::SetMismatch { set: name.to_owned(), task: task.name.clone(), why };
    let encode = encoder(task, width, height).map_err(mismatch)?;
    images
        .data
        .chunks_exact(height * width)
        .zip(labels.data)
        .map(|(pixels, label)| {
            let class = usize::from(label);
            if !fits(class, task) {
                let labels = task.labels.len();
                return Err(mismatch(format!("it has label {class}, but the task has only {labels}")));
            }
            Ok((Item::Here(encode(pixels)), class))
        })
        .collect()
}

/// Makes an input of a query out of the pixels of one picture.
type Encode = Box<dyn Fn(&[u8]) -> Bytes>;

/// How grey pixels become what a query of the task would bring.
fn encoder(task: &Task, width: usize, height: usize) -> Result<Encode, String> {
    let side = |pixels: usize| u32::try_from(pixels).map_err(|_| format!("{pixels} pixels are too many"));
    match (task.kind, task.inputs.as_slice()) {
        (TaskKind::ImageClassification, _) => {
            let (width, height) = (side(width)?, side(height)?);
            Ok(Box::new(move |pixels| png(pixels, width, height, ExtendedColorType::L8)))
        }
        (TaskKind::Tensor, [input]) if input.elements() == Some(width * height) => match input.dtype {
            DType::Fp32 => Ok(Box::new(|pixels| {
                pixels.iter().flat_map(|pixel| (f32::from(*pixel) / 255.0).to_le_bytes()).collect()
            })),
            DType::Uint8 => Ok(Box::new(Bytes::copy_from_slice)),
            other @ (DType::Bool
            | DType::Int8
            | DType::Int32
            | DType::Int64
            | DType::Fp16
            | DType::Fp64
            | DType::Bytes) => {
                Err(format!("pixels cannot become {}; only FP32 and UINT8 are known", other.name()))
            }
        },
        (TaskKind::TextClassification | TaskKind::FeatureExtraction, _) => {
            Err("the task takes texts, the set has pictures".to_owned())
        }
        (TaskKind::Tensor, inputs) => {
            let shapes: Vec<_> = inputs.iter().map(|input| &input.shape).collect();
            Err(format!("the task takes {shapes:?}, the set has {width}x{height} pixels"))
        }
    }
}

/// A PNG of these pixels.
pub(crate) fn png(pixels: &[u8], width: u32, height: u32, colour: ExtendedColorType) -> Bytes {
    let mut file = Vec::new();
    PngEncoder::new(&mut file)
        .write_image(pixels, width, height, colour)
        .expect("a PNG of the right number of pixels is written into memory; this is a bug");
    file.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_testkit::temp_dir;
    use modelless_types::{AccuracyRule, Goals, SpaceId, TaskId, TenantId, TensorSpec};

    fn task(kind: TaskKind, labels: &[&str], inputs: &[TensorSpec]) -> Task {
        Task {
            id: TaskId(1),
            name: "t".to_owned(),
            tenant: TenantId::DEFAULT,
            kind,
            metric: "top-1".to_owned(),
            accuracy_rule: AccuracyRule::default(),
            live_accuracy: modelless_types::LiveRule::default(),
            declared_accuracy: modelless_types::DeclaredRule::default(),
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            inputs: inputs.to_vec(),
            outputs: Vec::new(),
            default_space: SpaceId(1),
            defaults: Goals::default(),
            batching: None,
            cache: modelless_types::CacheFor::OFF,
            keep: modelless_types::KeepFor::ALWAYS,
            ahead: modelless_types::Ahead::default(),
            description: String::new(),
        }
    }

    fn sample() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../examples/fashion/sample/sample-2000-images-idx3-ubyte.gz")
    }

    #[test]
    fn the_shipped_sample_has_two_hundred_of_each_class() {
        let labels: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let set =
            LabelledSet::open(&sample(), "s", &task(TaskKind::ImageClassification, &labels, &[])).unwrap();
        let mut counts = [0; 10];
        (0..set.len()).for_each(|item| counts[set.class(item)] += 1);
        assert_eq!(counts, [200; 10]);
        assert!(set.input(0).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn pixels_become_tensors_of_the_task() {
        let input =
            |dtype, shape: &[u32]| [TensorSpec { name: "x".to_owned(), dtype, shape: shape.to_vec() }];
        let open =
            |inputs: &[TensorSpec]| LabelledSet::open(&sample(), "s", &task(TaskKind::Tensor, &[], inputs));
        assert_eq!(open(&input(DType::Fp32, &[1, 28, 28])).unwrap().input(0).unwrap().len(), 4 * 784);
        assert_eq!(open(&input(DType::Uint8, &[784])).unwrap().input(0).unwrap().len(), 784);
        for wrong in [input(DType::Fp32, &[3]), input(DType::Int64, &[784])] {
            assert!(matches!(open(&wrong), Err(Error::SetMismatch { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn reads_a_list_of_files() {
        let folder = temp_dir("set").unwrap();
        let list = folder.path().join("labels.csv");
        let task = task(TaskKind::ImageClassification, &["cat", "dog"], &[]);
        fs::write(&list, "a.png,dog\nb, c.png,0\n\n").unwrap();
        let set = LabelledSet::open(&list, "pets", &task).unwrap();
        assert_eq!((set.len(), set.class(0), set.class(1), set.name()), (2, 1, 0, "pets"));
        assert!(matches!(set.input(1), Err(Error::Read { path, .. }) if path.ends_with("b, c.png")));
        for (text, said) in
            [("a.png,cow", "line 1"), ("a.png,2", "none of the task's"), ("x", "FILE,LABEL"), ("", "empty")]
        {
            fs::write(&list, text).unwrap();
            let error = LabelledSet::open(&list, "pets", &task).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_packed_set_is_the_same_set() {
        let folder = temp_dir("set").unwrap();
        let list = folder.path().join("labels.csv");
        let task = task(TaskKind::ImageClassification, &["cat", "dog"], &[]);
        fs::write(folder.path().join("a.png"), "not looked at").unwrap();
        fs::write(&list, "a.png,dog\na.png,cat\n").unwrap();
        let packed = LabelledSet::open(&list, "pets", &task).unwrap().pack().unwrap();
        let path = folder.path().join("set.jsonl.gz");
        fs::write(&path, packed).unwrap();
        let set = LabelledSet::open(&path, "pets", &task).unwrap();
        assert_eq!((set.len(), set.class(0), set.class(1)), (2, 1, 0));
        assert_eq!(set.input(1).unwrap(), "not looked at");

        let path = folder.path().join("set.jsonl");
        fs::write(&path, "{\"label\": \"dog\", \"input\": \"YQ==\"}\n").unwrap();
        assert_eq!(LabelledSet::open(&path, "pets", &task).unwrap().class(0), 1);
        for (text, said) in [
            ("{\"label\": \"cow\", \"input\": \"YQ==\"}", "none of the task's"),
            ("{\"label\": 2, \"input\": \"YQ==\"}", "none of the task's"),
            ("{\"label\": 0, \"input\": \"?\"}", "line 1: its input is not base64"),
            ("label,input", "line 1"),
            ("\n", "empty"),
        ] {
            fs::write(&path, text).unwrap();
            let error = LabelledSet::open(&path, "pets", &task).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn labels_of_vectors_are_the_sets_own_and_texts_stay_texts() {
        let folder = modelless_testkit::temp_dir("set").unwrap();
        let path = folder.path().join("set.jsonl");
        let lines = [("film", "good"), ("press", "so it is"), ("film", "bad")];
        let lines = lines.map(|(label, text)| format!("{{\"label\": \"{label}\", \"text\": \"{text}\"}}"));
        fs::write(&path, lines.join("\n")).unwrap();
        let vectors = task(TaskKind::FeatureExtraction, &[], &[]);
        let set = LabelledSet::open(&path, "s", &vectors).unwrap();
        assert_eq!((0..3).map(|item| set.class(item)).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(set.input(1).unwrap(), "so it is");
        let packed = folder.path().join("packed.jsonl.gz");
        fs::write(&packed, set.pack().unwrap()).unwrap();
        let again = LabelledSet::open(&packed, "s", &vectors).unwrap();
        assert_eq!((again.class(1), again.input(2).unwrap()), (1, Bytes::from("bad")));
        let labels = task(TaskKind::TextClassification, &["film"], &[]);
        let error = LabelledSet::open(&path, "s", &labels).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("none of the task's"), "{error}");
        for line in ["{\"label\": 0}", "{\"label\": 0, \"text\": \"a\", \"input\": \"YQ==\"}"] {
            fs::write(&path, line).unwrap();
            let error = LabelledSet::open(&path, "s", &vectors).unwrap_err().to_string();
            assert!(error.contains("either `input`"), "{error}");
        }
    }

    #[test]
    fn items_without_an_input_count_for_the_memory_that_they_take() {
        let lines = "{\"label\":0,\"text\":\"\"}\n".repeat(10);
        let texts = task(TaskKind::TextClassification, &["a"], &[]);
        let read = |most| from_lines_within(most, lines.as_bytes(), Path::new("many"), &texts);
        assert_eq!(read(10 * BESIDES).unwrap().len(), 10);
        let error = read(10 * BESIDES - 1).unwrap_err().to_string();
        assert!(error.contains("line 10") && error.contains("64 of each for itself"), "{error}");
    }

    #[test]
    fn a_set_that_does_not_fit_is_refused() {
        let few = task(TaskKind::ImageClassification, &["a", "b"], &[]);
        assert!(matches!(LabelledSet::open(&sample(), "s", &few), Err(Error::SetMismatch { .. })));
        let missing = LabelledSet::open(Path::new("no-images-idx3-ubyte.gz"), "s", &few);
        assert!(missing.unwrap_err().to_string().contains("no-images-idx3"));
        assert!(LabelledSet::open(Path::new("what"), "s", &few).is_err());
        let other = Task { metric: "f1".to_owned(), ..few };
        let error = LabelledSet::open(&sample(), "s", &other).unwrap_err().to_string();
        assert!(error.contains("\"f1\", which is not measured here"), "{error}");
    }
}
