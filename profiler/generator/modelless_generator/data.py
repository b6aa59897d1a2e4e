"""Tensors as the task's adapter prepared them: what `modelless variant dump` writes.

A folder with `dump.json` and one `.npy` file for each input of the model; rows are items. Arrays are mapped, not read, so a
set may be larger than memory.
"""

import json
import pathlib

import numpy as np

from .errors import BadInput


class Tensors:
    def __init__(self, folder, what):
        """`what` is how messages call it."""
        folder = pathlib.Path(folder)
        try:
            about = json.loads((folder / "dump.json").read_text())
            self.arrays = {
                tensor["name"]: np.load(folder / tensor["file"], mmap_mode="r", allow_pickle=False)
                for tensor in about["inputs"]
            }
            self.labels = np.load(folder / "labels.npy", allow_pickle=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput("unreadable-set", f"the {what} cannot be read: {error}") from error
        self.what = what
        self.batch = int(about.get("batch", 32))
        self.count = min((len(array) for array in self.arrays.values()), default=0)
        if self.count == 0:
            raise BadInput("empty-set", f"the {what} is empty; it takes some labelled items to make variants with")
        for name, array in self.arrays.items():
            if len(array) != self.count:
                raise BadInput("unreadable-set", f"the {what} has {len(array)} rows of `{name}` and {self.count} of others")
            self.must_be_finite(name, array)

    def must_be_finite(self, name, array):
        if not np.issubdtype(array.dtype, np.floating):
            return
        for start in range(0, len(array), 256):
            part = np.asarray(array[start : start + 256])
            finite = np.isfinite(part.reshape(len(part), -1)).all(axis=1)
            if not finite.all():
                row = start + int(np.argmin(finite))
                raise BadInput(
                    "set-not-finite",
                    f"item {row} of the {self.what} has a value in `{name}` that is no finite number; expected finite "
                    "numbers only: look at that item, and at `scale`, `mean` and `std` of the adapter",
                )

    def batches(self, size=None):
        """What a session takes, so many items at a time."""
        size = size or self.batch
        for start in range(0, self.count, size):
            yield {name: np.ascontiguousarray(array[start : start + size]) for name, array in self.arrays.items()}
