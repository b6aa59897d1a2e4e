"""Which range of each activation eight bits are spent on.

Three ways, from one pass over the data for extents and one for histograms, so that memory does not grow with the set:

* `minmax`: all that was seen. Nothing is cut off; one outlier makes everything else coarse.
* `percentile`: all but the largest 0.01 % of magnitudes.
* `entropy`: the threshold whose eight-bit form loses least information of the distribution that was seen (Kullback-Leibler
  divergence). Values beyond it are counted at its edge.

onnxruntime has calibrators of its own. They are not used: they keep every activation of every batch in memory until the end,
and their entropy looks for 128 levels in 128 bins, which are there at once, so that it never has anything to weigh. Their way of
rewriting the graph is used, and is given the ranges that are found here.
"""

import numpy as np
from onnx import TensorProto, helper

from . import model as models
from .errors import BadInput

BINS = 2048
# Levels of magnitude that eight bits give a tensor of both signs, and one of one sign.
LEVELS_SIGNED, LEVELS_UNSIGNED = 128, 256
PERCENTILE = 99.99
# Every so many bins a threshold is tried.
STEP = 8
METHODS = ("minmax", "percentile", "entropy")
BATCH = 16


class Seen:
    """What is known of one activation."""

    def __init__(self):
        self.low, self.high, self.counts = np.inf, -np.inf, None

    def extent(self, values):
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    @property
    def magnitude(self):
        return max(abs(self.low), abs(self.high))

    def count(self, values):
        """Magnitudes only. Zeros are left out: eight bits hold them exactly whatever the threshold, and after a rectifier
        they would outweigh all the rest."""
        if self.counts is None:
            self.counts = np.zeros(BINS, np.int64)
        if self.magnitude > 0:
            magnitudes = np.abs(values[values != 0])
            self.counts += np.histogram(magnitudes, BINS, (0.0, self.magnitude))[0]

    def range(self, method):
        """The lowest and the highest value that is held."""
        threshold = self.magnitude
        if method != "minmax" and self.counts is not None and self.counts.any():
            edges = np.linspace(0.0, self.magnitude, BINS + 1)
            if method == "percentile":
                threshold = edges[percentile(self.counts)]
            else:
                signed = self.low < 0.0 < self.high
                threshold = edges[least_lost(self.counts, LEVELS_SIGNED if signed else LEVELS_UNSIGNED)]
        # Zero is always among them: padding and rectifiers give it.
        return min(max(self.low, -threshold), 0.0), max(min(self.high, threshold), 0.0)


def percentile(counts, share=PERCENTILE):
    """How many bins hold so many of a hundred."""
    total = np.cumsum(counts)
    return int(np.searchsorted(total, total[-1] * share / 100.0)) + 1


def least_lost(counts, levels):
    """How many bins to keep so that their form in so many levels tells the most of the whole."""
    best, kept = np.inf, len(counts)
    for bins in range(levels, len(counts) + 1, STEP):
        lost = divergence(counts, bins, levels)
        if lost < best:
            best, kept = lost, bins
    return kept


def divergence(counts, bins, levels):
    """Kullback-Leibler divergence of what eight bits make of the first bins from what was seen."""
    inside = counts[:bins].astype(np.float64)
    seen = inside.copy()
    seen[-1] += counts[bins:].sum()
    level = np.minimum(np.arange(bins) * levels // bins, levels - 1)
    filled = inside > 0
    sums = np.bincount(level, inside, levels)
    shared = np.bincount(level, filled, levels)
    made = np.zeros(bins)
    made[filled] = (sums / np.maximum(shared, 1))[level[filled]]
    if not made.any():
        return np.inf
    # What was cut off may lie where nothing else is: a little is taken for it, as for all that was not seen.
    small = 1e-6
    p, q = seen / seen.sum() + small * (seen > 0), made / made.sum() + small
    p, q = p / p.sum(), q / q.sum()
    there = p > 0
    return float(np.sum(p[there] * np.log(p[there] / q[there])))


def observe(model, tensors, tell):
    """All float activations of a model on the data, by their names."""
    watched = models.onnx.ModelProto()
    watched.CopyFrom(model)
    given = {value.name for value in models.real_inputs(model) if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    known = {value.name for value in watched.graph.output}
    outputs = [name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name]
    inferred = models.onnx.shape_inference.infer_shapes(model)
    types = {v.name: v.type.tensor_type.elem_type for v in [*inferred.graph.value_info, *inferred.graph.output]}
    names = [name for name in outputs if types.get(name, TensorProto.FLOAT) == TensorProto.FLOAT]
    for name in names:
        if name not in known:
            watched.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    # As it is: what is fused away cannot be watched.
    session = models.session(watched, models.onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    seen = {name: Seen() for name in [*given, *names]}

    def pass_over(do, what):
        for number, batch in enumerate(tensors.batches(BATCH)):
            tell(what, min(number * BATCH, tensors.count), tensors.count)
            found = dict(zip(names, session.run(names, batch)))
            found |= {name: value for name, value in batch.items() if name in given}
            for name, values in found.items():
                if values.size and values.dtype == np.float32:
                    if do is Seen.extent and not np.isfinite(values).all():
                        raise BadInput(
                            "activation-not-finite",
                            f"`{name}` inside of the model is not finite on the {tensors.what}; ranges cannot be found from that",
                        )
                    do(seen[name], values)

    pass_over(Seen.extent, "ranges of activations")
    pass_over(Seen.count, "histograms of activations")
    return {name: one for name, one in seen.items() if np.isfinite(one.low)}
