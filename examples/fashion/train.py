#!/usr/bin/env python3
"""Trains the six models of this example and writes them as ONNX, in fp32 and int8.

    train.py [--data FOLDER] [--out FOLDER] [--models linear,mlp_s,...]

Needs torch, numpy, onnx and onnxruntime. On one CPU core the whole ladder takes about twenty minutes, most of it for
cnn_l. Inputs are pixels between 0 and 1; the normalisation is part of each model, so that it cannot be forgotten.

The trained files under models/ were made this way. A run on another machine or with another version of torch gives
other weights; the accuracies come out within a few tenths of a per cent. The accuracy printed here is only for
watching the training: the figures that are shown to users are measured by `modelless`.
"""

import argparse
import gzip
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

SEED = 0
BATCH = 256
CALIBRATION_IMAGES = 512
# Mean and standard deviation of the training pixels.
MEAN, DEVIATION = 0.2860, 0.3530


class Normalise(nn.Module):
    def forward(self, x):
        return (x - MEAN) / DEVIATION


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            conv(channels, channels),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


def conv(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def linear():
    return nn.Sequential(Normalise(), nn.Flatten(), nn.Linear(784, 10))


def mlp_s():
    return nn.Sequential(Normalise(), nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def mlp_l():
    return nn.Sequential(
        Normalise(),
        nn.Flatten(),
        *(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.2)),
        nn.Linear(256, 10),
    )


def cnn_s():
    return nn.Sequential(
        Normalise(),
        *(nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Linear(784, 10),
    )


def cnn_m():
    return nn.Sequential(
        Normalise(),
        *(conv(1, 32), nn.MaxPool2d(2)),
        *(conv(32, 64), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Dropout(0.3), nn.Linear(3136, 128), nn.ReLU()),
        *(nn.Dropout(0.3), nn.Linear(128, 10)),
    )


def cnn_l():
    return nn.Sequential(
        Normalise(),
        conv(1, 32),
        *(conv(32, 48, stride=2), Residual(48)),
        *(conv(48, 96, stride=2), Residual(96)),
        *(conv(96, 128, stride=2), Residual(128)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)),
        nn.Linear(128, 10),
    )


# What it is, for how many epochs, and whether half of the images are mirrored while training.
LADDER = {
    "linear": (linear, 3, False),
    "mlp_s": (mlp_s, 5, False),
    "mlp_l": (mlp_l, 8, False),
    "cnn_s": (cnn_s, 5, False),
    "cnn_m": (cnn_m, 6, True),
    "cnn_l": (cnn_l, 8, True),
}


def read(folder, name):
    """Images as floats between 0 and 1, and their labels."""
    images = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())
    images = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28).astype(np.float32) / 255
    labels = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(labels)


def train(model, epochs, mirror, images, labels):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-3)
    steps = epochs * (len(images) // BATCH + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 5)
    for _ in range(epochs):
        model.train()
        order = torch.randperm(len(images))
        for start in range(0, len(images), BATCH):
            part = order[start : start + BATCH]
            batch = images[part]
            if mirror:
                flip = torch.rand(len(part)) < 0.5
                batch = batch.clone()
                batch[flip] = batch[flip].flip(-1)
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels[part]).backward()
            optimizer.step()
            schedule.step()
    model.eval()


def accuracy(model, images, labels):
    with torch.no_grad():
        answers = torch.cat([model(part).argmax(1) for part in images.split(500)])
    return (answers == labels).float().mean().item()


class Calibration(CalibrationDataReader):
    """The first training images, 64 at a time."""

    def __init__(self, images):
        self.parts = iter([{"input": part.numpy()} for part in images[:CALIBRATION_IMAGES].split(64)])

    def get_next(self):
        return next(self.parts, None)


def export(model, name, out, images):
    """All files. The batch axis stays open."""
    torch.jit.trace(model, torch.rand(2, 1, 28, 28)).save(str(out / f"{name}.pt"))
    path = out / f"{name}.onnx"
    torch.onnx.export(
        model,
        torch.rand(2, 1, 28, 28),
        str(path),
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": {0: "N"}, "logits": {0: "N"}},
        opset_version=13,
    )
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(out / f"{name}.int8.onnx"),
            Calibration(images),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "models")
    parser.add_argument("--models", default=",".join(LADDER))
    options = parser.parse_args()

    images, labels = read(options.data, "train")
    test_images, test_labels = read(options.data, "t10k")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.models.split(","):
        build, epochs, mirror = LADDER[name]
        torch.manual_seed(SEED)
        model = build()
        train(model, epochs, mirror, images, labels)
        print(f"{name}: {accuracy(model, test_images, test_labels):.4f} on the test set", flush=True)
        export(model, name, options.out, images)


if __name__ == "__main__":
    main()
