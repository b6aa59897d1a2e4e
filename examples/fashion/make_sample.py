#!/usr/bin/env python3
"""Makes the labelled sample and the three pictures of this example out of Fashion-MNIST's test set.

    make_sample.py [FOLDER]

FOLDER holds t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz; Debian's package dataset-fashion-mnist puts
them into /usr/share/datasets/fashion-mnist, which is the default. The same input always gives the same bytes.

The sample has 200 items of each of the ten classes, drawn with a fixed seed and shuffled. It was drawn once and is
not chosen to make any model look good. The pictures are chosen: on them cheap and accurate models differ.

Nothing but Python's standard library is needed.
"""

import gzip
import random
import struct
import sys
import zlib
from pathlib import Path

SEED = 2000
PER_CLASS = 200
CLASSES = 10
SIDE = 28
# Numbers in the test set.
PICTURES = {"boot": 4132, "shirt": 5497, "bag": 3282}

HERE = Path(__file__).resolve().parent


def read_idx(path, kind, axes):
    """The extents and bytes of a gzipped IDX file of unsigned bytes."""
    data = gzip.decompress(path.read_bytes())
    magic, *shape = struct.unpack_from(f">{1 + axes}I", data)
    if magic != 0x0800 | axes:
        raise SystemExit(f"{path} is not an IDX file of {kind}")
    body = data[4 * (1 + axes) :]
    count = 1
    for extent in shape:
        count *= extent
    if len(body) != count:
        raise SystemExit(f"{path} holds {len(body)} bytes instead of {count}")
    return shape, body


def write_idx(path, shape, body):
    """The same, written without name and time so that the bytes do not change from run to run."""
    header = struct.pack(f">{1 + len(shape)}I", 0x0800 | len(shape), *shape)
    path.write_bytes(gzip.compress(header + body, compresslevel=9, mtime=0))


def write_png(path, pixels):
    """A grey 28x28 PNG, pixel for pixel."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + pixels[row * SIDE : (row + 1) * SIDE] for row in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    png = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + png)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/datasets/fashion-mnist")
    (count, *extents), images = read_idx(folder / "t10k-images-idx3-ubyte.gz", "images", 3)
    _, labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz", "labels", 1)
    if extents != [SIDE, SIDE] or count != len(labels):
        raise SystemExit("images and labels do not belong together")

    def image(number):
        return images[number * SIDE * SIDE : (number + 1) * SIDE * SIDE]

    draw = random.Random(SEED)
    chosen = []
    for label in range(CLASSES):
        chosen += draw.sample([n for n in range(count) if labels[n] == label], PER_CLASS)
    draw.shuffle(chosen)

    sample = HERE / "sample"
    sample.mkdir(exist_ok=True)
    write_idx(
        sample / "sample-2000-images-idx3-ubyte.gz",
        [len(chosen), SIDE, SIDE],
        b"".join(image(number) for number in chosen),
    )
    write_idx(sample / "sample-2000-labels-idx1-ubyte.gz", [len(chosen)], bytes(labels[n] for n in chosen))

    pictures = HERE / "pictures"
    pictures.mkdir(exist_ok=True)
    for name, number in PICTURES.items():
        write_png(pictures / f"{name}.png", image(number))


if __name__ == "__main__":
    main()
