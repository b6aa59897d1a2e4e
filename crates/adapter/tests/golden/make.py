"""Writes cases.json: small PNG files, adapters, and the floats that each has to become.

The floats are worked out with Pillow and numpy alone, by the rules in docs/inputs.md, so they are an independent
reading of those rules. Run it only when a rule changes:

    python3 -m venv venv && venv/bin/pip install numpy==2.4.6 pillow==13.0.0
    venv/bin/python make.py
"""

import base64
import io
import json
import pathlib

import numpy as np
import PIL
from PIL import Image, ImageOps

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "area": Image.Resampling.BOX,
}


def picture(width, height, channels, seed):
    """Smooth waves with some noise: neither flat nor only noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = []
    for c in range(channels):
        wave = np.sin(x * (0.21 + 0.05 * c)) * np.cos(y * (0.17 + 0.07 * c))
        planes.append(128 + 90 * wave + rng.normal(0, 12, (height, width)))
    values = np.clip(np.rint(np.stack(planes, -1)), 0, 255).astype(np.uint8)
    return values[..., 0] if channels == 1 else values


def shapes(width, height, seed):
    """Black and coloured boxes on white: between two passes of resizing much is held within 0 to 255."""
    rng = np.random.default_rng(seed)
    values = np.full((height, width, 3), 255, np.uint8)
    for _ in range(9):
        left, top = rng.integers(0, width - 4), rng.integers(0, height - 4)
        values[top : top + rng.integers(1, 9), left : left + rng.integers(1, 9)] = rng.choice([0, 0, 255, 200], 3)
    return values


def save(image, **extra):
    out = io.BytesIO()
    image.save(out, "PNG", **extra)
    return out.getvalue()


def over_white(image):
    """The rules for alpha and 16 bits; everything else is Pillow's own conversion."""
    if image.mode in ("I;16", "I"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
        rgba = np.asarray(image.convert("RGBA")).astype(np.float64)
        alpha = rgba[..., 3:] / 255
        return Image.fromarray(np.rint(rgba[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8))
    return image


def resize(image, spec):
    width, height = spec["width"], spec["height"]
    how = spec.get("resize", {})
    filter = FILTERS[how.get("filter", "bilinear")]
    mode = how.get("mode", "stretch")
    if mode == "stretch":
        return image.resize((width, height), filter)
    if mode == "shorter-side":
        size = how.get("size", max(width, height))
        w, h = image.size
        new = (size, int(size * h / w)) if w <= h else (int(size * w / h), size)
        image = image.resize(new, filter)
        left, top = round((new[0] - width) / 2), round((new[1] - height) / 2)
        return image.crop((left, top, left + width, top + height))
    factor = min(width / image.width, height / image.height)
    new = (round(image.width * factor), round(image.height * factor))
    canvas = Image.new(image.mode, (width, height), (how.get("fill", 0),) * len(image.getbands()))
    canvas.paste(image.resize(new, filter), ((width - new[0]) // 2, (height - new[1]) // 2))
    return canvas


def expected(png, spec):
    image = over_white(ImageOps.exif_transpose(Image.open(io.BytesIO(png))))
    image = resize(image.convert("L" if spec["channels"] == "grey" else "RGB"), spec)
    values = np.asarray(image).astype(np.float32)
    values = values.reshape(spec["height"], spec["width"], -1)
    if spec["channels"] == "bgr":
        values = values[..., ::-1]
    scale = np.float32(spec.get("scale", 1 / 255))
    values = (values * scale - np.float32(spec.get("mean", 0))) / np.float32(spec.get("std", 1))
    if spec.get("layout", "nchw") == "nchw":
        values = values.transpose(2, 0, 1)
    return [round(float(v), 6) for v in values.ravel()]


def case(name, png, **spec):
    spec = {"kind": "image-classification"} | spec
    return {
        "name": name,
        "png": base64.b64encode(png).decode(),
        "adapter": spec,
        "values": expected(png, spec),
    }


def photograph(name, image, **how):
    """A JPEG and the colour pixels that Pillow (libjpeg) decodes from it."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=92, **how)
    pixels = np.asarray(ImageOps.exif_transpose(Image.open(out)).convert("RGB"))
    return {
        "name": name,
        "jpeg": base64.b64encode(out.getvalue()).decode(),
        "width": pixels.shape[1],
        "height": pixels.shape[0],
        "pixels": base64.b64encode(pixels.tobytes()).decode(),
    }


def main():
    rgb = save(Image.fromarray(picture(40, 30, 3, 1)))
    tall = save(Image.fromarray(picture(21, 50, 3, 2)))
    grey = save(Image.fromarray(picture(8, 8, 1, 3)))
    alpha = picture(12, 12, 4, 4)
    rgba = save(Image.fromarray(alpha, "RGBA"))
    grey_alpha = save(Image.fromarray(np.ascontiguousarray(alpha[..., 1:3]), "LA"))
    rng = np.random.default_rng(5)
    deep = save(Image.fromarray(rng.integers(0, 65536, (6, 6)).astype(np.uint16)))
    palette = save(Image.fromarray(picture(10, 10, 3, 6)).quantize(16), transparency=3)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = save(Image.fromarray(picture(9, 6, 3, 7)), exif=exif)
    imagenet = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    cases = [
        case("grey as it is", grey, width=8, height=8, channels="grey"),
        case("grey repeated into colour", grey, width=8, height=8, channels="rgb", **imagenet),
        case("colour to grey by luma", rgb, width=40, height=30, channels="grey", scale=1),
        case("stretched smaller", rgb, width=8, height=6, channels="rgb", **imagenet),
        case("stretched larger, cubic", grey, width=13, height=11, channels="grey", resize={"filter": "bicubic"}),
        case("lanczos, blue first, rows first", rgb, width=9, height=7, channels="bgr", layout="nhwc", scale=1,
             mean=[104, 117, 123], resize={"filter": "lanczos"}),
        case("area", rgb, width=10, height=10, channels="rgb", resize={"filter": "area"}),
        case("shorter side, then the middle", rgb, width=8, height=8, channels="rgb",
             resize={"mode": "shorter-side", "size": 11}, **imagenet),
        case("shorter side of a tall picture", tall, width=10, height=12, channels="rgb",
             resize={"mode": "shorter-side", "filter": "bicubic"}, scale=1, mean=127, std=128),
        case("shorter side, hard edges on white", save(Image.fromarray(shapes(27, 29, 10))), width=16, height=16, channels="rgb",
             resize={"mode": "shorter-side", "size": 20, "filter": "bicubic"}, scale=1, mean=127, std=128),
        case("shorter side of a smaller picture, hard edges on white", save(Image.fromarray(shapes(14, 12, 11))), width=18,
             height=18, channels="rgb", resize={"mode": "shorter-side", "size": 22, "filter": "bicubic"}, scale=1, mean=127,
             std=128),
        case("letterbox", tall, width=12, height=12, channels="rgb",
             resize={"mode": "letterbox", "fill": 114}, layout="nhwc"),
        case("alpha over white", rgba, width=12, height=12, channels="rgb"),
        case("grey with alpha over white", grey_alpha, width=12, height=12, channels="grey"),
        case("palette with a transparent colour", palette, width=10, height=10, channels="rgb"),
        case("sixteen bits by the high byte", deep, width=6, height=6, channels="grey", scale=1),
        case("turned by its EXIF", turned, width=6, height=9, channels="rgb"),
    ]
    colour = Image.fromarray(picture(21, 13, 3, 8))
    jpegs = [
        photograph("baseline", colour, subsampling=0),
        photograph("progressive", colour, subsampling=0, progressive=True),
        photograph("halved colour", colour, subsampling=2),
        photograph("restart markers", colour, subsampling=0, restart_marker_blocks=1),
        photograph("grey", Image.fromarray(picture(21, 13, 1, 9)), optimize=True),
        photograph("progressive, turned", colour, subsampling=0, progressive=True, exif=exif),
        photograph("cmyk", colour.convert("CMYK")),
    ]
    out = {"made_with": f"numpy {np.__version__}, Pillow {PIL.__version__}", "cases": cases, "jpegs": jpegs}
    path = pathlib.Path(__file__).parent / "cases.json"
    path.write_text(json.dumps(out, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


main()
