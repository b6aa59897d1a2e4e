"""How many answers are right on dumped tensors (`modelless variant dump`): numpy and ONNX Runtime alone, no code of ours.

    python count_right.py DUMP MODEL.onnx...

One number a line. Batches are those in which accuracy is measured: what rounds by batch gives the same answers only so.
"""

import json
import pathlib
import sys

import numpy as np
import onnxruntime


def main():
    dump = pathlib.Path(sys.argv[1])
    about = json.loads((dump / "dump.json").read_text())
    labels = np.load(dump / about["labels"])
    inputs = {one["name"]: np.load(dump / one["file"]) for one in about["inputs"]}
    lengths = np.load(dump / about["lengths"]) if about.get("lengths") else None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # As it is served: without it products of eight bits saturate on processors that have no VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    for path in sys.argv[2:]:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        right = 0
        for start in range(0, len(labels), about["batch"]):
            part = slice(start, start + about["batch"])
            # Where items have lengths, a batch is as long as its longest.
            longest = None if lengths is None else int(lengths[part].max())
            feed = {name: np.ascontiguousarray(values[part, :longest] if lengths is not None else values[part]) for name, values in inputs.items()}
            answer = session.run(None, feed)[0]
            right += int((answer.argmax(1) == labels[part]).sum())
        print(right)


if __name__ == "__main__":
    main()
