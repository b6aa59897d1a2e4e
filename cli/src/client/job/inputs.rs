//! The inputs of a job: which there are, told before anything is sent, and each one read when its turn comes.

use super::names;
use super::walk::{self, LeftOut};
use crate::exit::usage;
use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use modelless_store::JOB_INPUTS_MAX;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// One input is read whole; no server takes one this large.
const INPUT_MAX: u64 = 64 << 20;

/// An object of JSON, of which nothing is looked at but its names.
type Object = BTreeMap<String, Box<RawValue>>;

/// All inputs of a job.
#[derive(Debug)]
pub(super) struct Inputs {
    source: Source,
    /// Stands for which inputs these are: the same again has the same.
    pub(super) digest: String,
    pub(super) left_out: LeftOut,
}

#[derive(Debug)]
enum Source {
    /// Names are paths below this folder.
    Files { root: PathBuf, names: Vec<String> },
    /// A query's body a line.
    Lines { file: File, path: PathBuf, lines: Vec<Line> },
}

/// Where a line stands.
#[derive(Clone, Copy, Debug)]
struct Line {
    number: usize,
    from: u64,
    bytes: u64,
}

/// An input as it is sent.
#[derive(Serialize)]
struct Sent<'a> {
    at: u32,
    name: &'a str,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    media: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Object>,
}

impl Inputs {
    /// Looks through a folder, a list of paths, or lines of JSON. What lies in the folder of outputs, if there is to be one, is no input.
    pub(super) fn find(input: &Path, output: Option<&Path>) -> anyhow::Result<Self> {
        let most = usize::try_from(JOB_INPUTS_MAX).unwrap_or(usize::MAX);
        let found = if input.is_dir() {
            let output = output.and_then(|output| output.canonicalize().ok());
            if output.is_some() && output == input.canonicalize().ok() {
                return Err(usage("--output is the folder of --input; outputs need a folder of their own"));
            }
            let (names, left_out) = walk::files(input, output.as_deref(), most)?;
            Self { left_out, ..Self::files(input, names, |name| format!("{name:?}"))? }
        } else if input.extension().is_some_and(|end| end.eq_ignore_ascii_case("jsonl")) {
            Self::lines(input, most)?
        } else {
            let (names, numbers) = listed(input, most)?;
            let root = input.parent().unwrap_or(Path::new(""));
            let numbers: BTreeMap<&str, usize> =
                names.iter().map(String::as_str).zip(numbers.iter().copied()).collect();
            let place = |name: &str| {
                let number = numbers.get(name).copied().unwrap_or_default();
                format!("{}, line {number}: {name:?}", input.display())
            };
            Self::files(root, names.clone(), place)?
        };
        if found.len() == 0 {
            return Err(usage(format!("{} has no inputs", input.display())));
        }
        Ok(found)
    }

    fn files(root: &Path, names: Vec<String>, place: impl Fn(&str) -> String) -> anyhow::Result<Self> {
        names::check(names.iter().map(String::as_str)).map_err(usage)?;
        let mut digest = Sha256::new();
        for name in &names {
            let about =
                fs::metadata(root.join(name)).with_context(|| format!("{} cannot be read", place(name)))?;
            if !about.is_file() {
                return Err(usage(format!("{} is not a file", place(name))));
            }
            small_enough(about.len(), || place(name))?;
            let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let changed = changed.unwrap_or_default().as_nanos();
            digest.update(format!("{name}\0{}\0{changed}\n", about.len()));
        }
        let source = Source::Files { root: root.to_owned(), names };
        Ok(Self { source, digest: hex(digest), left_out: LeftOut::default() })
    }

    fn lines(path: &Path, most: usize) -> anyhow::Result<Self> {
        let cannot = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(cannot)?;
        let mut reader = BufReader::new(file);
        let (mut digest, mut lines, mut from) = (Sha256::new(), Vec::new(), 0);
        for number in 1.. {
            let mut line = Vec::new();
            let read =
                reader.by_ref().take(INPUT_MAX + 1).read_until(b'\n', &mut line).with_context(cannot)?;
            if read == 0 {
                break;
            }
            let place = || format!("{}, line {number}", path.display());
            let bytes = u64::try_from(read).unwrap_or(u64::MAX);
            small_enough(bytes, place)?;
            digest.update(&line);
            if !line.trim_ascii().is_empty() {
                object(&line).map_err(|why| usage(format!("{}: {why}", place())))?;
                lines.push(Line { number, from, bytes });
                anyhow::ensure!(lines.len() <= most, "{} has more than {most} inputs", path.display());
            }
            from += bytes;
        }
        let source = Source::Lines { file: reader.into_inner(), path: path.to_owned(), lines };
        Ok(Self { source, digest: hex(digest), left_out: LeftOut::default() })
    }

    /// How many.
    pub(super) fn len(&self) -> u32 {
        let len = match &self.source {
            Source::Files { names, .. } => names.len(),
            Source::Lines { lines, .. } => lines.len(),
        };
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    /// Whether outputs are lines of one file, as inputs are.
    pub(super) fn are_lines(&self) -> bool {
        matches!(self.source, Source::Lines { .. })
    }

    /// Reads the input in this place: its name, and the JSON that is sent of it.
    pub(super) fn read(&mut self, at: u32) -> anyhow::Result<(String, String)> {
        let index = usize::try_from(at).unwrap_or(usize::MAX);
        let nowhere = || anyhow::anyhow!("the server asks for input {at}, which there is none of");
        match &mut self.source {
            Source::Files { root, names } => {
                let name = names.get(index).ok_or_else(nowhere)?;
                let path = root.join(name);
                let data = read_whole(&path)?;
                let data = Some(STANDARD.encode(data));
                let sent = Sent { at, name, media: media(name), data, json: None };
                Ok((name.clone(), serde_json::to_string(&sent)?))
            }
            Source::Lines { file, path, lines } => {
                let line = *lines.get(index).ok_or_else(nowhere)?;
                let place = || format!("{}, line {}", path.display(), line.number);
                file.seek(SeekFrom::Start(line.from)).with_context(place)?;
                let mut text = Vec::new();
                file.by_ref().take(line.bytes).read_to_end(&mut text).with_context(place)?;
                let (name, json) = object(&text)
                    .map_err(|why| anyhow::anyhow!("{} changed while it was read: {why}", place()))?;
                let name = name.unwrap_or_else(|| format!("line-{}", line.number));
                let sent = Sent { at, name: &name, media: None, data: None, json: Some(json) };
                let sent = serde_json::to_string(&sent)?;
                Ok((name, sent))
            }
        }
    }
}

fn read_whole(path: &Path) -> anyhow::Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", path.display());
    let mut data = Vec::new();
    let file = File::open(path).with_context(cannot)?;
    file.take(INPUT_MAX + 1).read_to_end(&mut data).with_context(cannot)?;
    small_enough(u64::try_from(data.len()).unwrap_or(u64::MAX), || path.display().to_string())?;
    Ok(data)
}

fn small_enough(bytes: u64, place: impl Fn() -> String) -> anyhow::Result<()> {
    if bytes > INPUT_MAX {
        let most = modelless_types::Bytes(INPUT_MAX);
        return Err(usage(format!("{} is too large; an input has at most {most}", place())));
    }
    Ok(())
}

/// Paths of a list, in its order, and their lines' numbers.
fn listed(list: &Path, most: usize) -> anyhow::Result<(Vec<String>, Vec<usize>)> {
    let text = fs::read(list).with_context(|| format!("cannot read {}", list.display()))?;
    let text = String::from_utf8(text).map_err(|_| {
        usage(format!("{} is no list of paths; --input takes a folder, a list, or a .jsonl", list.display()))
    })?;
    let (mut names, mut numbers) = (Vec::new(), Vec::new());
    for (line, number) in text.lines().map(str::trim_end).zip(1..) {
        if line.is_empty() {
            continue;
        }
        let name = names::below(line).map_err(|why| {
            usage(format!("{}, line {number}: {why}; name files beside or below the list", list.display()))
        })?;
        names.push(name);
        numbers.push(number);
        anyhow::ensure!(names.len() <= most, "{} has more than {most} inputs", list.display());
    }
    Ok((names, numbers))
}

/// A query's body, and what it is called if that was said beside.
fn object(line: &[u8]) -> Result<(Option<String>, Object), String> {
    let mut object: Object = serde_json::from_slice(line)
        .map_err(|error| format!("expected a JSON object such as {{\"inputs\": \"text\"}}: {error}"))?;
    if !object.contains_key("inputs") {
        return Err("there is no \"inputs\" in it".to_owned());
    }
    let Some(name) = object.remove("name") else { return Ok((None, object)) };
    match serde_json::from_str(name.get()) {
        Ok(name) => Ok((Some(name), object)),
        Err(_) => Err("\"name\" is no text".to_owned()),
    }
}

/// The content type, by how the file's name ends; nothing for what goes as it is.
fn media(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    match ending.to_ascii_lowercase().as_str() {
        "png" => Some("image/png"),
        "jpg" | "jpeg" => Some("image/jpeg"),
        "txt" => Some("text/plain"),
        "json" => Some("application/json"),
        _ => None,
    }
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use modelless_testkit::temp_dir;
    use serde_json::{Value, json};

    fn read(inputs: &mut Inputs, at: u32) -> Value {
        serde_json::from_str(&inputs.read(at).unwrap().1).unwrap()
    }

    #[test]
    fn files_of_a_folder_go_as_they_are_with_what_their_endings_say() {
        let folder = temp_dir("inputs").unwrap();
        let input = folder.path().join("in");
        fs::create_dir_all(input.join("sub")).unwrap();
        fs::create_dir_all(input.join("out")).unwrap();
        for (name, data) in [("b.PNG", "p"), ("sub/a.jpeg", "j"), ("raw", "\u{0}\u{1}"), ("out/x.json", "no")]
        {
            fs::write(input.join(name), data).unwrap();
        }
        let out = input.join("out");
        let mut inputs = Inputs::find(&input, Some(&out)).unwrap();
        assert_eq!((inputs.len(), inputs.are_lines()), (3, false));
        assert_eq!(
            read(&mut inputs, 0),
            json!({"at": 0, "name": "b.PNG", "type": "image/png", "data": "cA=="})
        );
        assert_eq!(read(&mut inputs, 1), json!({"at": 1, "name": "raw", "data": "AAE="}));
        assert_eq!(read(&mut inputs, 2)["type"], "image/jpeg");
        assert!(inputs.read(3).is_err());
        let again = Inputs::find(&input, Some(&out)).unwrap().digest;
        assert_eq!(again, inputs.digest);
        fs::write(input.join("raw"), "longer").unwrap();
        assert_ne!(Inputs::find(&input, Some(&out)).unwrap().digest, again);
        assert!(Inputs::find(&input, Some(&input)).unwrap_err().is::<Usage>());
    }

    #[test]
    fn a_list_names_files_beside_it_and_a_wrong_line_is_told_by_its_number() {
        let folder = temp_dir("inputs").unwrap();
        let (list, out) = (folder.path().join("list.txt"), folder.path().join("out"));
        fs::write(folder.path().join("b.txt"), "b").unwrap();
        fs::write(folder.path().join("a.json"), "{}").unwrap();
        fs::write(&list, "b.txt\n\n./a.json\r\n").unwrap();
        let mut inputs = Inputs::find(&list, Some(&out)).unwrap();
        assert_eq!(inputs.len(), 2);
        assert_eq!(
            read(&mut inputs, 0),
            json!({"at": 0, "name": "b.txt", "type": "text/plain", "data": "Yg=="})
        );
        assert_eq!(read(&mut inputs, 1)["name"], "a.json");
        for (text, said) in [
            ("b.txt\nnone.png\n", "line 2"),
            ("b.txt\n\n../x\n", "line 3"),
            ("/etc/passwd\n", "line 1"),
            ("b.txt\n./b.txt\n", "same output"),
            ("\n", "no inputs"),
        ] {
            fs::write(&list, text).unwrap();
            let error = format!("{:#}", Inputs::find(&list, Some(&out)).unwrap_err());
            assert!(error.contains(said), "{text:?}: {error}");
        }
        fs::write(&list, [0xff, 0xd8]).unwrap();
        assert!(Inputs::find(&list, Some(&out)).unwrap_err().to_string().contains("no list of paths"));
    }

    #[test]
    fn lines_are_bodies_of_queries_and_go_as_they_were_written() {
        let folder = temp_dir("inputs").unwrap();
        let (path, out) = (folder.path().join("in.jsonl"), folder.path().join("out"));
        let text = "{\"inputs\": 1.10000000000000000001}\n\n{\"inputs\": \"ä\", \"name\": \"x\", \"parameters\": {\"top_k\": 2}}";
        fs::write(&path, text).unwrap();
        let mut inputs = Inputs::find(&path, Some(&out)).unwrap();
        assert_eq!((inputs.len(), inputs.are_lines()), (2, true));
        // In any order, and to the last digit.
        let (name, sent) = inputs.read(1).unwrap();
        assert_eq!((name.as_str(), sent.contains("\"name\":\"x\"")), ("x", true));
        assert!(sent.contains("\"top_k\": 2") && !sent[20..].contains("\"name\""), "{sent}");
        let (name, sent) = inputs.read(0).unwrap();
        assert_eq!((name.as_str(), sent.contains("1.10000000000000000001")), ("line-1", true));
        for (text, said) in [
            ("{\"inputs\": 1}\n{\"inputs\"\n", "line 2"),
            ("{\"input\": 1}", "\"inputs\""),
            ("[1]", "line 1"),
            ("{\"inputs\": 1, \"name\": 2}", "\"name\""),
        ] {
            fs::write(&path, text).unwrap();
            let error = Inputs::find(&path, Some(&out)).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(said), "{text:?}: {error}");
        }
    }
}
