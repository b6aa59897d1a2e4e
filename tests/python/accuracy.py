"""The accuracy of every variant of a package, computed without any code of the platform's.

    python accuracy.py PACKAGE DUMPS MEASURED.json

PACKAGE has task.toml and models/*.toml; DUMPS has a folder for each model, by its name, with the tensors that the platform's
adapter made of the labelled set (`modelless variant dump`); MEASURED.json is what `modelless profile run --accuracy-only --json`
said. Two questions:

* on those very tensors, does Python's ONNX Runtime answer as many of them right, to the last one?
* decoded, resized and normalised by Python's own libraries (Pillow, numpy), how far apart are tensors and accuracy?

Prints JSON; what is too much is for the caller to say.
"""

import base64
import gzip
import io
import json
import pathlib
import sys
import tomllib

import numpy as np
import onnxruntime
from PIL import Image

FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS, "area": Image.BOX}


def idx(path):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    axes = data[3]
    shape = [int.from_bytes(data[4 + 4 * at : 8 + 4 * at], "big") for at in range(axes)]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def labelled(task, folder):
    """Pictures and classes, as Python reads them."""
    path = folder / task["labelled-set"]["path"]
    if "images-idx3" in path.name:
        pictures = [Image.fromarray(pixels) for pixels in idx(path)]
        return pictures, idx(path.with_name(path.name.replace("images-idx3", "labels-idx1"))).astype(int)
    if ".jsonl" in path.name:
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines() if line.strip()]
        classes = [task["labels"].index(one["label"]) if isinstance(one["label"], str) else one["label"] for one in lines]
        return [Image.open(io.BytesIO(base64.b64decode(one["input"]))) for one in lines], np.array(classes)
    lines = [line.rsplit(",", 1) for line in path.read_text().splitlines() if line.strip()]
    classes = [task["labels"].index(label) if label in task["labels"] else int(label) for _, label in lines]
    return [Image.open(path.parent / file) for file, _ in lines], np.array(classes)


def prepared(picture, adapter):
    """What docs/inputs.md says becomes of a picture, by Pillow and numpy."""
    if "transparency" in picture.info or picture.mode in ("RGBA", "LA"):
        under = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        under.alpha_composite(picture.convert("RGBA"))
        picture = under
    grey, wide, high = adapter["channels"] == "grey", adapter["width"], adapter["height"]
    picture = picture.convert("L" if grey else "RGB")
    resize = adapter.get("resize", {})
    how = FILTERS[resize.get("filter", "bilinear")]
    if resize.get("mode", "stretch") == "shorter-side":
        wanted, (width, height) = resize.get("size", max(wide, high)), picture.size
        # As torchvision's Resize and CenterCrop.
        size = (wanted, wanted * height // width) if width <= height else (wanted * width // height, wanted)
        picture = picture.resize(size, how)
        left, top = round((size[0] - wide) / 2), round((size[1] - high) / 2)
        picture = picture.crop((left, top, left + wide, top + high))
    elif picture.size != (wide, high):
        picture = picture.resize((wide, high), how)
    pixels = np.asarray(picture, np.float64)
    pixels = pixels[:, :, None] if grey else pixels
    if adapter["channels"] == "bgr":
        pixels = pixels[:, :, ::-1]
    values = (pixels * adapter.get("scale", 1 / 255) - np.array(adapter.get("mean", 0.0))) / np.array(adapter.get("std", 1.0))
    return values.transpose(2, 0, 1).astype(np.float32)


def right(file, name, tensors, classes, batch):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # As it is served: without it products of eight bits saturate on processors that have no VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    said = [session.run(None, {name: tensors[at : at + batch]})[0] for at in range(0, len(tensors), batch)]
    scores = np.concatenate(said).reshape(len(tensors), -1)
    return int((scores.argmax(1) == classes).sum())


def main():
    package, dumps, measured = (pathlib.Path(arg) for arg in sys.argv[1:])
    task = tomllib.loads((package / "task.toml").read_text())
    figures = {one["variant"]: one["accuracy"] for one in json.loads(measured.read_text())}
    pictures, classes = labelled(task, package)
    rows = []
    for manifest in sorted((package / "models").glob("*.toml")):
        model = tomllib.loads(manifest.read_text())
        dump = dumps / model["name"]
        about = json.loads((dump / "dump.json").read_text())
        (given,) = about["inputs"]
        theirs = np.load(dump / given["file"])
        assert (np.load(dump / about["labels"]) == classes).all(), "the dump has other labels than Python reads"
        own = np.stack([prepared(picture, model["adapter"]) for picture in pictures]).reshape(theirs.shape)
        # In steps of a pixel's 256 values, whatever the adapter makes of them.
        step = model["adapter"].get("scale", 1 / 255) / np.min(model["adapter"].get("std", 1.0))
        apart = float(np.abs(own - theirs).max() / step)
        for variant in model["variants"]:
            name = variant.get("name") or f"{model['name']}-{variant['precision']}"
            file, figure = manifest.parent / variant["file"], figures[name]
            ask = lambda tensors: right(file, given["name"], tensors, classes, about["batch"])
            rows.append({
                "variant": name, "samples": len(classes), "measured": round(figure["value"] * len(classes) / 1e6),
                "on_dumped_tensors": ask(theirs), "on_own_tensors": ask(own), "pixels_apart": round(apart, 4),
            })
            assert figure["samples"] == len(classes), f"{name} was measured on {figure['samples']} samples"
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
