"""Makes the model of `modelless up --demo vad` out of the package silero-vad, without PyTorch.

    pip install -r tools.txt
    pip install --no-deps --require-hashes --target PACKAGES -r models.txt
    python make.py PACKAGES OUT

The package's own ONNX files carry their state with the batch as the second axis, and take the sampling rate as a number of
its own: neither goes into a batch with other clients' streams. So the graph is written down here from the package's tensors,
with the batch first everywhere and one tensor for all that a stream carries:

    audio [N, 512]   32 ms at 16 kHz, between -1 and 1
    state [N, 320]   zeros to begin with; afterwards what the last answer gave: the LSTM's two vectors, and the end of the audio

    speech [N, 1]    how likely it is that somebody speaks
    state_next [N, 320]

It is compared with the package's own export, sample by sample, over noise, tones and silence; how many of its decisions are
the same is the accuracy that the manifest declares. Progress goes to standard output as JSON.
"""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
WINDOW, BEFORE, WIDTH = 512, 64, 128
STATE = 2 * WIDTH + BEFORE
STREAMS, CHUNKS = 8, 120
APART = 1e-4


def tell(step, done, of):
    print(json.dumps({"step": step, "done": done, "of": of}), flush=True)


def tensors(path):
    """The weights in the package's own export, by the ends of their names."""
    found = {}
    for node in onnx.load(path).graph.initializer:
        found[node.name.removeprefix("model.")] = numpy_helper.to_array(node)
    return found


def build(weights):
    nodes, constants = [], []

    def constant(value):
        name = f"c{len(constants)}"
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def op(kind, *inputs, out=None, **attributes):
        out = out or f"t{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [out] if isinstance(out, str) else out, **attributes))
        return out

    ints = lambda *values: constant(np.array(values, np.int64))
    named = lambda name: constant(weights[name])

    op("Split", "state", ints(WIDTH, WIDTH, BEFORE), out=["hidden", "cell", "before"], axis=1)
    sound = op("Concat", "before", "audio", axis=1)
    # The spectrum: windows of 256 samples, every 128.
    sound = op("Unsqueeze", op("Pad", sound, ints(0, 0, 0, BEFORE), mode="reflect"), ints(1))
    waves = op("Conv", sound, named("stft.forward_basis_buffer"), kernel_shape=[256], strides=[128])
    op("Split", waves, ints(129, 129), out=["real", "imaginary"], axis=1)
    square = lambda x: op("Mul", x, x)
    x = op("Sqrt", op("Add", square("real"), square("imaginary")))
    for layer, stride in enumerate((1, 2, 2, 1)):
        kernel = [named(f"encoder.{layer}.reparam_conv.{part}") for part in ("weight", "bias")]
        x = op("Relu", op("Conv", x, *kernel, kernel_shape=[3], strides=[stride], pads=[1, 1]))
    x = op("Flatten", x)
    # One step of an LSTM; the order of its four parts is PyTorch's.
    seen = op("Gemm", x, named("decoder.rnn.weight_ih"), named("decoder.rnn.bias_ih"), transB=1)
    held = op("Gemm", "hidden", named("decoder.rnn.weight_hh"), named("decoder.rnn.bias_hh"), transB=1)
    op("Split", op("Add", seen, held), ints(WIDTH, WIDTH, WIDTH, WIDTH), out=["take", "keep", "new", "show"], axis=1)
    kept = op("Mul", op("Sigmoid", "keep"), "cell")
    taken = op("Mul", op("Sigmoid", "take"), op("Tanh", "new"))
    cell = op("Add", kept, taken)
    hidden = op("Mul", op("Sigmoid", "show"), op("Tanh", cell))
    last = weights["decoder.decoder.2.weight"].reshape(1, WIDTH)
    logit = op("Gemm", op("Relu", hidden), constant(last), named("decoder.decoder.2.bias"), transB=1)
    op("Sigmoid", logit, out="speech")
    after = op("Slice", "audio", ints(WINDOW - BEFORE), ints(WINDOW), ints(1))
    op("Concat", hidden, cell, after, out="state_next", axis=1)

    tensor = lambda name, size: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
    graph = helper.make_graph(
        nodes, "silero_vad", [tensor("audio", WINDOW), tensor("state", STATE)],
        [tensor("speech", 1), tensor("state_next", STATE)], constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString(deterministic=True)


def sounds():
    """Streams that are no speech and are judged differently: noise, tones with overtones that swell like syllables, silence."""
    rng, time = np.random.default_rng(1), np.arange(CHUNKS * WINDOW) / 16_000
    made = []
    for stream in range(STREAMS):
        pitch = 90 + 25 * stream + 20 * np.sin(2 * np.pi * 0.7 * time)
        phase = 2 * np.pi * np.cumsum(pitch) / 16_000
        voiced = sum(np.sin(k * phase) / k for k in range(1, 12))
        swell = np.clip(np.sin(2 * np.pi * (2 + stream / 3) * time), 0, 1)
        made.append(0.2 * swell * voiced + 0.02 * rng.standard_normal(len(time)) * (stream % 3))
    return np.array(made, np.float32).reshape(STREAMS, CHUNKS, WINDOW)


def compare(content, packaged):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    open_model = lambda model: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ours, theirs = open_model(content), open_model(str(packaged))
    state, packed = np.zeros((STREAMS, STATE), np.float32), np.zeros((2, STREAMS, WIDTH), np.float32)
    before, farthest, same = np.zeros((STREAMS, BEFORE), np.float32), 0.0, 0
    streams = sounds()
    for chunk in range(CHUNKS):
        audio = streams[:, chunk]
        speech, state = ours.run(None, {"audio": audio, "state": state})
        wanted, packed = theirs.run(
            None, {"input": np.hstack([before, audio]), "state": packed, "sr": np.array(16_000, np.int64)}
        )
        before = audio[:, -BEFORE:]
        farthest = max(farthest, float(np.abs(speech - wanted).max()))
        same += int(((speech > 0.5) == (wanted > 0.5)).sum())
    if farthest > APART:
        raise SystemExit(f"what was made differs by {farthest:.1e} from the package's own export, expected at most {APART}")
    return same / (STREAMS * CHUNKS)


MANIFEST = """name = "silero-vad"
architecture = "silero-vad 6.2.3 for 16 kHz, one step of its LSTM"
licence = "MIT"
# Compared with the package's own export on {count} pieces of sound.
accuracy = {accuracy}

[adapter]
kind = "tensor"
outputs = {{ state = "state_next" }}

[[variants]]
precision = "fp32"
file = "silero-vad.onnx"
max_batch = 64
"""


def main():
    packages, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    (out / "models").mkdir(parents=True, exist_ok=True)
    data = packages / "silero_vad" / "data"
    tell("making silero-vad", 0, 2)
    packaged = data / "silero_vad_16k_op15.onnx"
    content = build(tensors(packaged))
    tell("comparing it with the package's own export", 1, 2)
    accuracy = compare(content, packaged)
    (out / "models" / "silero-vad.onnx").write_bytes(content)
    (out / "models" / "silero-vad.toml").write_text(MANIFEST.format(count=STREAMS * CHUNKS, accuracy=accuracy))
    (out / "task.toml").write_text((pathlib.Path(__file__).parent / "task.toml").read_text())
    tell("done", 2, 2)


if __name__ == "__main__":
    main()
