"""TorchScript files, read and written without PyTorch.

A zip archive: `data.pkl` describes the module and its tensors, `code/` has its classes as text, `data/` and `constants/`
the tensors' numbers. Nothing that a pickle names is imported or called: what it describes is kept as plain data.
"""

import io
import pickle
import struct
import zipfile

import numpy as np

from .errors import BadInput

# Of all that an archive holds, unpacked.
LARGEST = 1 << 31
ELEMENTS = {
    "Float": np.float32,
    "Double": np.float64,
    "Half": np.float16,
    "Long": np.int64,
    "Int": np.int32,
    "Short": np.int16,
    "Char": np.int8,
    "Byte": np.uint8,
    "Bool": np.bool_,
}
# What PyTorch itself writes since 1.12: operators mean what they mean today.
VERSION = b"10\n"
# Any, as long as it is always the same one.
DATE = (1980, 1, 1, 0, 0, 0)


class Module:
    """An object of a file: its class, and what it holds by name."""

    kind, holds = "", {}

    def __setstate__(self, holds):
        self.holds = holds if isinstance(holds, dict) else {}


class Archive:
    """What is in a file: the module, its constants, and the texts of its classes by the name of their file."""

    def __init__(self, content):
        try:
            self.zip = zipfile.ZipFile(io.BytesIO(content))
            if sum(entry.file_size for entry in self.zip.infolist()) > LARGEST:
                raise BadInput("too-large", f"the model unpacks to more than {LARGEST} bytes")
            objects = [name for name in self.zip.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
            if not objects:
                raise BadInput("corrupt-model", "the model is no TorchScript file (it has no data.pkl), or damaged")
            self.folder = objects[0].removesuffix("data.pkl")
            self.numbers = {}
            self.module = self.object("data.pkl", "data")
            self.constants = self.object("constants.pkl", "constants") if self.has("constants.pkl") else ()
            code = f"{self.folder}code/"
            self.code = {
                name.removeprefix(code).removesuffix(".py").replace("/", "."): self.zip.read(name).decode()
                for name in self.zip.namelist()
                if name.startswith(code) and name.endswith(".py")
            }
        except (BadInput, MemoryError):
            raise
        except Exception as error:  # a damaged archive or pickle fails in many ways
            raise BadInput("corrupt-model", f"the model is no TorchScript file, or damaged: {error}") from error
        if not isinstance(self.module, Module) or not self.code:
            raise BadInput("corrupt-model", "the model has no code: save it with torch.jit.save")

    def has(self, name):
        return f"{self.folder}{name}" in self.zip.namelist()

    def object(self, name, numbers):
        return Described(io.BytesIO(self.zip.read(f"{self.folder}{name}")), self, numbers).load()

    def storage(self, folder, kind, key, count):
        """A tensor's numbers, one after another."""
        if (folder, key) not in self.numbers:
            if kind not in ELEMENTS:
                raise BadInput("unknown-operator", f"the model has numbers of a type ({kind}) that is not converted")
            values = np.frombuffer(self.zip.read(f"{self.folder}{folder}/{key}"), ELEMENTS[kind])
            if len(values) < count:
                raise BadInput("corrupt-model", f"the model has {len(values)} numbers where {count} are needed")
            self.numbers[folder, key] = values
        return self.numbers[folder, key]


class Described(pickle.Unpickler):
    """A pickle as a description."""

    def __init__(self, file, archive, numbers):
        super().__init__(file)
        self.archive, self.folder = archive, numbers

    def find_class(self, module, name):
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
            return tensor if name == "_rebuild_tensor_v2" else lambda data, *_: data
        if module == "torch" and name.endswith("Storage"):
            return name.removesuffix("Storage")
        if module == "collections" and name == "OrderedDict":
            return dict
        if module == "torch.jit._pickle":
            return lambda value, *_: value
        if module.split(".")[0] == "__torch__":
            return type("Named", (Module,), {"kind": f"{module}.{name}"})
        raise BadInput("corrupt-model", f"the model names {module}.{name}, which no exported model does")

    def persistent_load(self, about):
        _, kind, key, _, count = about
        return self.archive.storage(self.folder, kind, key, count)


def tensor(storage, offset, size, stride, *_):
    """As many numbers of a storage as it says, and no others."""
    last = offset + sum((extent - 1) * step for extent, step in zip(size, stride)) if 0 not in size else offset - 1
    if len(size) != len(stride) or offset < 0 or min(stride, default=0) < 0 or min(size, default=0) < 0 or last >= len(storage):
        raise BadInput("corrupt-model", "a tensor of the model lies outside of its numbers")
    steps = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps).copy()


def written(code, tensors, name="model"):
    """A file with one module: `code` is that of its class `__torch__.Net`, `tensors` are what it holds by name."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        add = lambda path, content: archive.writestr(zipfile.ZipInfo(f"{name}/{path}", DATE), content)
        add("data.pkl", described(tensors))
        add("code/__torch__.py", code)
        add("constants.pkl", b"\x80\x02).")
        add("version", VERSION)
        add("byteorder", b"little")
        for number, value in enumerate(tensors.values()):
            add(f"data/{number}", np.ascontiguousarray(value).tobytes())
    return out.getvalue()


def described(tensors):
    """The pickle of a module that holds tensors, in the instructions that PyTorch itself uses."""
    text = lambda value: b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    whole = lambda value: b"\x8a\x08" + struct.pack("<q", value)
    row = lambda parts: b"(" + b"".join(parts) + b"t"
    name_of = lambda module, name: b"c" + f"{module}\n{name}\n".encode()
    kinds = {np.dtype(kind): name for name, kind in ELEMENTS.items()}
    parts = [b"\x80\x02", name_of("__torch__", "Net"), b")\x81}("]
    for number, (name, value) in enumerate(tensors.items()):
        storage = [text("storage"), name_of("torch", f"{kinds[value.dtype]}Storage"), text(str(number)), text("cpu"), whole(value.size)]
        strides = [int(np.prod(value.shape[axis + 1 :], dtype=np.int64)) for axis in range(value.ndim)]
        what = [row(storage) + b"Q", whole(0), row(map(whole, value.shape)), row(map(whole, strides)), b"\x89"]
        hooks = name_of("collections", "OrderedDict") + b")R"
        parts += [text(name), name_of("torch._utils", "_rebuild_tensor_v2"), row([*what, hooks]), b"R"]
    return b"".join([*parts, text("training"), b"\x89", b"ub."])
