"""The accuracy of every variant of a package of texts, computed without any code of the platform's: as accuracy.py does for pictures.

    python accuracy_text.py PACKAGE DUMPS MEASURED.json

On the tensors that the platform's adapter made, and on those that Python's own tokenizer makes of the texts. Labels are right
where the largest number is theirs; of vectors it is counted how often the nearest other one has the same label, pooled and
compared here in double precision. `texts_apart` are texts that Python cuts into other tokens.
"""

import gzip
import json
import pathlib
import sys
import tomllib

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def labelled(task, folder):
    """Texts and classes, as Python reads them."""
    content = gzip.decompress((folder / task["labelled-set"]["path"]).read_bytes()).decode()
    lines = [json.loads(line) for line in content.splitlines() if line.strip()]
    labels = task.get("labels") or list(dict.fromkeys(one["label"] for one in lines))
    classes = [labels.index(one["label"]) if isinstance(one["label"], str) else one["label"] for one in lines]
    return [one["text"] for one in lines], np.array(classes)


def tokens(adapter, folder, texts):
    """Of each text, cut to the model's greatest length."""
    about = adapter["tokens"]
    tokenizer = Tokenizer.from_file(str(folder / about["tokenizer"]))
    tokenizer.no_padding()
    tokenizer.enable_truncation(about["max"])
    return [one.ids for one in tokenizer.encode_batch(texts)]


def padded(rows, adapter, given, width):
    """Those tokens as the model's inputs, by the inputs' names."""
    about = adapter["tokens"]
    ids = np.full((len(rows), width), about.get("pad", 0), np.int64)
    mask = np.zeros((len(rows), width), np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row)], mask[at, : len(row)] = row, 1
    made = {about.get("ids", "input_ids"): ids, about.get("mask", "attention_mask"): mask}
    return {one["name"]: made.get(one["name"], np.zeros_like(ids)) for one in given}


def vectors(answer, mask, adapter):
    """One for each text, as long as 1."""
    answer = answer.astype(np.float64)
    how = adapter.get("pooling", "mean")
    if how == "mean":
        answer = (answer * mask[:, :, None]).sum(1) / np.maximum(mask.sum(1), 1)[:, None]
    elif how == "cls":
        answer = answer[:, 0]
    elif how == "max":
        answer = np.where(mask[:, :, None] > 0, answer, -np.inf).max(1)
    return answer / np.maximum(np.linalg.norm(answer, axis=1, keepdims=True), 1e-300)


def right(file, feed, lengths, classes, batch, adapter):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # As it is served: without it products of eight bits saturate on processors that have no VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    said = []
    for at in range(0, len(classes), batch):
        # A batch is as long as its longest, and what it is rounded by depends on that.
        longest = int(lengths[at : at + batch].max())
        part = {name: np.ascontiguousarray(values[at : at + batch, :longest]) for name, values in feed.items()}
        answer = session.run([adapter["output"]] if adapter.get("output") else None, part)[0]
        if adapter["kind"] == "feature-extraction":
            answer = vectors(answer, part[adapter["tokens"].get("mask", "attention_mask")], adapter)
        said.append(answer)
    said = np.concatenate(said)
    if adapter["kind"] == "feature-extraction":
        near = said @ said.T
        np.fill_diagonal(near, -np.inf)
        return int((classes[near.argmax(1)] == classes).sum())
    return int((said.reshape(len(classes), -1).argmax(1) == classes).sum())


def main():
    package, dumps, measured = (pathlib.Path(arg) for arg in sys.argv[1:])
    task = tomllib.loads((package / "task.toml").read_text())
    figures = {one["variant"]: one["accuracy"] for one in json.loads(measured.read_text())}
    texts, classes = labelled(task, package)
    rows = []
    for manifest in sorted((package / "models").glob("*.toml")):
        model = tomllib.loads(manifest.read_text())
        adapter, dump = model["adapter"], dumps / model["name"]
        about = json.loads((dump / "dump.json").read_text())
        lengths = np.load(dump / about["lengths"])
        theirs = {one["name"]: np.load(dump / one["file"]) for one in about["inputs"]}
        assert (np.load(dump / about["labels"]) == classes).all(), "the dump has other labels than Python reads"
        width = next(iter(theirs.values())).shape[1]
        cut = tokens(adapter, manifest.parent, texts)
        assert max(map(len, cut)) <= width, "Python makes more tokens of a text than the dump has room for"
        own = padded(cut, adapter, about["inputs"], width)
        other = np.zeros(len(texts), bool)
        for name, values in theirs.items():
            other |= (values != own[name]).any(1)
        for variant in model["variants"]:
            name = variant.get("name") or f"{model['name']}-{variant['precision']}"
            file, figure = manifest.parent / variant["file"], figures[name]
            ask = lambda feed: right(file, feed, lengths, classes, about["batch"], adapter)
            same = ask(theirs)
            rows.append({
                "variant": name, "samples": len(classes), "measured": round(figure["value"] * len(classes) / 1e6),
                "on_dumped_tensors": same, "on_own_tensors": ask(own) if other.any() else same, "texts_apart": int(other.sum()),
            })
            assert figure["samples"] == len(classes), f"{name} was measured on {figure['samples']} samples"
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
