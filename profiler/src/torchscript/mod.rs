//! What a TorchScript file says of itself, read without libtorch and without running anything in it: the signature of
//! its `forward` and its parameters. So that what does not fit is told before anything is sent or loaded.
//!
//! It is a zip archive: `data.pkl` describes the object and its tensors, `code/` has its classes as text, `data/` the
//! tensors' numbers. It believes nothing: whether the model runs is for the engine to find out.

mod code;
mod pickle;
mod zip;

use pickle::{At, Node, Pickle};
use std::collections::BTreeSet;
use zip::Archive;

/// The object without its tensors' numbers; more is no model's.
const OBJECT: u64 = 256 << 20;
/// One file of code.
const CODE: u64 = 64 << 20;
/// Far more than any model has.
const PARAMETERS: usize = 100_000;
/// Parts of modules that wait to be looked at.
const PARTS: usize = 4_000_000;
/// Of a parameter, with all modules around it.
const LONGEST_NAME: usize = 4_096;

/// An argument of `forward`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Argument {
    /// What it is called.
    pub name: String,
    /// Its type, as TorchScript writes it: `Tensor`, `Optional[Tensor]`, `int`, ...
    pub kind: String,
    /// It has a default.
    pub may_be_left_out: bool,
}

impl Argument {
    /// Whether a tensor can be given for it.
    pub fn takes_a_tensor(&self) -> bool {
        matches!(self.kind.as_str(), "Tensor" | "Optional[Tensor]")
    }
}

/// A tensor that comes with the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Where it is, such as `layer.0.weight`.
    pub name: String,
    /// What its numbers are, such as `Float` or `QInt8`.
    pub dtype: String,
    /// Its extents.
    pub shape: Vec<u64>,
}

/// What is known of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TorchScript {
    /// The class of the whole, such as `__torch__.Net`.
    pub class: String,
    /// What `forward` takes.
    pub inputs: Vec<Argument>,
    /// The type of what it gives.
    pub output: String,
    /// Its parameters and buffers.
    pub parameters: Vec<Parameter>,
}

impl TorchScript {
    /// Reads a file's content; says what is wrong with it.
    pub fn read(file: &[u8]) -> Result<Self, String> {
        let archive = Archive::read(file)?;
        let object = archive.entries.iter().find_map(|entry| {
            let folder = entry.name.strip_suffix("/data.pkl")?;
            (!folder.contains('/')).then_some((folder, entry))
        });
        let (folder, object) = object.ok_or("it has no object (data.pkl)")?;
        let prefix = format!("{folder}/");
        let pickle = Pickle::read(&archive.content(object, OBJECT)?)?;
        let Node::Object { class, .. } = pickle.node(pickle.root) else {
            return Err("it holds no module but something else; save one with torch.jit.save".to_owned());
        };
        let class = pickle.text(*class).unwrap_or_default().to_owned();
        let (module, name) = class.rsplit_once('.').ok_or("the class of its object has no name")?;
        let path = format!("{prefix}code/{}.py", module.replace('.', "/"));
        let code = archive.entries.iter().find(|entry| entry.name == path);
        let code = code.ok_or("it has no code: it is no TorchScript; save it with torch.jit.save")?;
        let code = archive.content(code, CODE)?;
        let code = std::str::from_utf8(&code).map_err(|_| "its code is no text".to_owned())?;
        let (inputs, output) =
            code::forward(code, name).ok_or_else(|| format!("its class {class} has no `forward`"))?;
        let (mut parameters, mut read) = (Vec::new(), BTreeSet::new());
        for (name, tensor) in tensors(&pickle)? {
            let (parameter, storage) = tensor_of(&pickle, &name, tensor).ok_or_else(|| {
                format!("its parameter {name} is described in a way that no exported one is")
            })?;
            if read.insert(storage.key.clone()) {
                numbers(&archive, &prefix, &name, &storage)?;
            }
            parameters.push(parameter);
        }
        Ok(Self { class, inputs, output, parameters })
    }

    /// How many tensors it gives; `None` where only running it tells.
    pub fn outputs(&self) -> Option<usize> {
        if self.output == "Tensor" {
            return Some(1);
        }
        let inside = self.output.strip_prefix("Tuple[")?.strip_suffix(']')?;
        let parts = code::split(inside);
        parts.iter().all(|part| part.trim() == "Tensor").then_some(parts.len())
    }
}

/// What makes a tensor of its numbers, as pickles name it.
const REBUILD: &str = "torch._utils._rebuild_";

/// The tensors of a module and of those in it, with where they are.
fn tensors(pickle: &Pickle) -> Result<Vec<(String, At)>, String> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut left = vec![(String::new(), pickle.root)];
    while let Some((path, at)) = left.pop() {
        let inside = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match pickle.node(at) {
            Node::Call { what, .. } if pickle.text(*what).is_some_and(|what| what.starts_with(REBUILD)) => {
                found.push((path, at));
            }
            // Shared modules are looked at once; so are those that hold themselves.
            Node::Object { state: Some(state), .. } if seen.insert(at) => left.push((path, *state)),
            Node::Pairs(pairs) if seen.insert(at) => {
                let named = |(key, value): &(At, At)| (inside(pickle.text(*key).unwrap_or("?")), *value);
                left.extend(pairs.iter().rev().map(named));
            }
            Node::Row(row) if seen.insert(at) => {
                let numbered = |(number, value): (usize, &At)| (inside(&number.to_string()), *value);
                left.extend(row.iter().enumerate().rev().map(numbered));
            }
            Node::Plain
            | Node::Number(_)
            | Node::Text(_)
            | Node::Row(_)
            | Node::Pairs(_)
            | Node::Name(_)
            | Node::Call { .. }
            | Node::Object { .. }
            | Node::Elsewhere(_) => {}
        }
        if found.len() > PARAMETERS || left.len() > PARTS {
            return Err("it has more parameters than any model".to_owned());
        }
        if found.last().is_some_and(|(path, _)| path.len() > LONGEST_NAME) {
            return Err("its modules lie deeper in each other than those of any model".to_owned());
        }
    }
    Ok(found)
}

/// A tensor's numbers: which file, and how many bytes they have at least.
struct Storage {
    key: String,
    least: u64,
}

fn tensor_of(pickle: &Pickle, name: &str, at: At) -> Option<(Parameter, Storage)> {
    let Node::Call { with, .. } = pickle.node(at) else { return None };
    let [storage, _offset, sizes, ..] = pickle.row(*with)? else { return None };
    let Node::Elsewhere(storage) = pickle.node(*storage) else { return None };
    let [_, kind, key, _device, count] = pickle.row(*storage)? else { return None };
    let dtype = pickle.text(*kind)?.rsplit('.').next()?;
    let dtype = dtype.strip_suffix("Storage").unwrap_or(dtype).to_owned();
    let size = |at: &At| u64::try_from(pickle.number(*at)?).ok();
    let shape = pickle.row(*sizes)?.iter().map(size).collect::<Option<_>>()?;
    let least = size(count)?.checked_mul(bytes_of(&dtype))?;
    let parameter = Parameter { name: name.to_owned(), dtype, shape };
    Some((parameter, Storage { key: pickle.text(*key)?.to_owned(), least }))
}

/// Of one number; of types that are not known here at least nothing.
fn bytes_of(dtype: &str) -> u64 {
    match dtype {
        "ComplexDouble" => 16,
        "Double" | "Long" | "ComplexFloat" => 8,
        "Float" | "Int" | "QInt32" => 4,
        "Half" | "BFloat16" | "Short" => 2,
        "Char" | "Byte" | "Bool" | "QInt8" | "QUInt8" => 1,
        _ => 0,
    }
}

/// Whether they are there and what they were when they were written.
fn numbers(archive: &Archive<'_>, prefix: &str, name: &str, storage: &Storage) -> Result<(), String> {
    let path = format!("{prefix}data/{}", storage.key);
    let entry = archive.entries.iter().find(|entry| entry.name == path);
    let entry = entry.ok_or_else(|| format!("the numbers of its parameter {name} ({path}) are missing"))?;
    if entry.bytes < storage.least {
        return Err(format!(
            "the numbers of its parameter {name} have {} bytes, and {} are needed",
            entry.bytes, storage.least
        ));
    }
    archive.content(entry, u64::MAX - 1).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/engine/tests/models")
    }

    fn file(name: &str) -> Vec<u8> {
        std::fs::read(folder().join(name)).unwrap()
    }

    #[test]
    fn tells_what_a_model_takes_and_gives_and_what_comes_with_it() {
        let types = TorchScript::read(&file("types.pt")).unwrap();
        let names: Vec<_> = types.inputs.iter().map(|input| input.name.as_str()).collect();
        assert_eq!(names, ["f32", "f16", "f64", "i8", "u8", "i32", "i64", "b"]);
        assert!(types.inputs.iter().all(Argument::takes_a_tensor));
        assert_eq!((types.outputs(), types.class.as_str()), (Some(10), "__torch__.Types"));
        let gather = TorchScript::read(&file("gather.pt")).unwrap();
        assert_eq!((gather.output.as_str(), gather.outputs()), ("Dict[str, Tensor]", None));
        let [table] = &gather.parameters[..] else { panic!("{:?}", gather.parameters) };
        assert_eq!((table.name.as_str(), table.dtype.as_str()), ("table", "Float"));
        assert_eq!(table.shape.iter().product::<u64>() * 4, 80, "as many numbers as its file has");
    }

    #[test]
    fn every_model_of_the_engines_tests_is_read() {
        let mut read = 0;
        for entry in std::fs::read_dir(folder()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "pt") {
                let model = TorchScript::read(&std::fs::read(&path).unwrap());
                assert!(model.as_ref().is_ok_and(|model| !model.inputs.is_empty()), "{path:?}: {model:?}");
                read += 1;
            }
        }
        assert!(read >= 10, "{read}");
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        for name in ["gather.pt", "types.pt"] {
            let whole = file(name);
            for end in 0..whole.len() {
                assert!(TorchScript::read(&whole[..end]).is_err(), "{name} cut at {end}");
            }
            let known = TorchScript::read(&whole).unwrap();
            let mut noticed = 0;
            for at in 0..whole.len() {
                for bit in [0, 3, 7] {
                    let mut damaged = whole.clone();
                    damaged[at] ^= 1 << bit;
                    noticed += usize::from(TorchScript::read(&damaged).as_ref() != Ok(&known));
                }
            }
            assert!(noticed > whole.len() / 2, "{noticed} of {} changes were noticed", whole.len() * 3);
        }
        for wrong in [&b""[..], b"PK\x05\x06", b"\x80\x02c", b"{}", &[0xff; 64]] {
            assert!(TorchScript::read(wrong).is_err(), "{wrong:?}");
        }
    }

    /// A pickle in the place of the object's, made of instructions at random: nothing but an error or a value comes of it,
    /// and soon.
    #[test]
    fn pickles_of_any_instructions_end() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let steps = b"(((]})NKUXqhRbQtuesa\x81\x85\x86\x87\x88c\nJ.";
        let mut ended = 0;
        for _ in 0..20_000 {
            let length = next() % 60;
            let drawn = |_| {
                let drawn = usize::try_from(next() % 64).unwrap_or(0);
                steps.get(drawn).copied().unwrap_or(u8::try_from(drawn % 4).unwrap_or(0))
            };
            let pickle: Vec<u8> = (0..length).map(drawn).chain([b'.']).collect();
            if let Ok(read) = Pickle::read(&pickle) {
                ended += 1;
                let _ = tensors(&read);
            }
        }
        assert!(ended > 100, "seed 0x9e37...: {ended} were pickles at all");
    }

    #[test]
    fn what_is_no_torchscript_says_what_it_is_instead() {
        let onnx = file("echo.onnx");
        assert!(TorchScript::read(&onnx).unwrap_err().contains("no zip archive"));
    }
}
