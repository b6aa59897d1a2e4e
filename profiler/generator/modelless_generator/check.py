"""Whether a variant still says what its parent says, on real inputs.

Accuracy is not measured here: that is done where it is measured for everything, through the adapter and the runner that
serve. This is only what keeps nonsense from being counted.
"""

import numpy as np

from . import model as models
from .errors import Refused

# Of a hundred items, so many have to get the parent's first label.
TOP1 = 0.75
# Vectors of a variant are compared with vectors of others, so they have to point the same way.
COSINE_MEAN, COSINE_WORST = 0.95, 0.80
# What changes no result on paper changes it by rounding only.
EXACT = 1e-3


class Answers:
    """What a model answers to all items of a set: its first output, or the one that is named."""

    def __init__(self, session, tensors, output=None, mask=None):
        names = [one.name for one in session.get_outputs()]
        name = output or names[0]
        if name not in names:
            raise Refused(f"it has no output `{name}`")
        rows = []
        for batch in tensors.batches():
            values = np.asarray(session.run([name], batch)[0])
            if values.dtype.kind not in "fiub":
                raise Refused(f"its output `{name}` has no numbers")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise Refused("its answers are not all finite numbers")
            values = values.astype(np.float32)
            if mask in batch and values.ndim == 3 and values.shape[1] == batch[mask].shape[1]:
                # A vector for each word: what is compared is their mean, without padding.
                weight = batch[mask][:, :, None].astype(np.float32)
                values = (values * weight).sum(1) / np.maximum(weight.sum(1), 1)
            rows.append(values.reshape(len(values), -1))
        self.rows = np.concatenate(rows)

    def against(self, parent):
        """How alike they are."""
        if self.rows.shape != parent.rows.shape:
            raise Refused(f"its output has {self.rows.shape[1]} numbers an item, its parent's {parent.rows.shape[1]}")
        lengths = np.linalg.norm(self.rows, axis=1) * np.linalg.norm(parent.rows, axis=1)
        cosines = np.where(lengths > 0, (self.rows * parent.rows).sum(1) / np.maximum(lengths, 1e-30), 1.0)
        found = {
            "items": len(self.rows),
            "cosine_mean": float(cosines.mean()),
            "cosine_worst": float(cosines.min()),
            "largest_difference": float(np.abs(self.rows - parent.rows).max()),
        }
        if self.rows.shape[1] > 1:
            found["top1"] = float((self.rows.argmax(1) == parent.rows.argmax(1)).mean())
        return found


def judge(found, kind, exact=False):
    """Refuses what is no longer the same model."""
    if exact and found["largest_difference"] > EXACT:
        raise Refused(
            f"it should give the same numbers, but differs by up to {found['largest_difference']:.2g} (at most {EXACT} is rounding)"
        )
    if kind.endswith("classification") and found.get("top1", 1.0) < TOP1:
        raise Refused(f"only {found['top1']:.1%} of its first labels are its parent's; at least {TOP1:.0%} have to be")
    if not kind.endswith("classification") and (found["cosine_mean"] < COSINE_MEAN or found["cosine_worst"] < COSINE_WORST):
        raise Refused(
            f"its answers point elsewhere than its parent's (cosine {found['cosine_mean']:.3f} in the mean, {found['cosine_worst']:.3f} "
            f"at worst; at least {COSINE_MEAN} and {COSINE_WORST} are needed)"
        )


def answers(model, tensors, output, mask):
    return Answers(models.session(model), tensors, output, mask)
