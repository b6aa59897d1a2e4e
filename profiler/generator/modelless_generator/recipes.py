"""All that is made of one model, in the order in which it is worth having."""

import time

import numpy as np
import onnx

from . import calibrate, check, factor, from_script, model as models, quantise, rewrite, to_script
from .errors import BadInput, Refused
from .store import Store

STATIC = [f"int8-{method}" for method in calibrate.METHODS]
CUTS = {"svd-mild": (0.98, 0.995), "svd-strong": (0.93, 0.97)}
WHOLE = ["optimised", "int8-dynamic", *STATIC, *CUTS, "svd-int8", "fp16"]
# Of a smaller input: the model itself, and the two forms of it that are quicker still.
SMALLER = ["fp32", "int8-minmax", "int8-entropy"]
# Of a file of the other format.
CONVERTED = ("onnx", "torchscript")
PRECISION = {"onnx": "fp32", "torchscript": "fp32", "optimised": "fp32", "fp32": "fp32", "svd-mild": "fp32", "svd-strong": "fp32", "fp16": "fp16"}


class Base:
    """A model with the data that fits its input."""

    def __init__(self, job, about, parent, tell):
        self.job, self.name, self.tell = job, about.get("name", ""), tell
        self.calibration, self.check = (job.tensors(about[part], part) for part in ("calibration", "check"))
        self.parent, self.size, self.adapter = parent, about.get("size"), about.get("adapter_sha256")
        self.known = {}

    def once(self, what, make):
        """Computed when it is first needed; a refusal is remembered too."""
        if what not in self.known:
            try:
                self.known[what] = make(), None
            except Refused as why:
                self.known[what] = None, why
        value, why = self.known[what]
        if why is not None:
            raise why
        return value

    def model(self):
        def make():
            if not self.size:
                return self.parent
            return rewrite.at_size(self.parent, self.job.input, self.size)

        return self.once("model", make)

    def optimised(self):
        return self.once("optimised", lambda: rewrite.optimised(self.model(), self.job.scratch))

    def seen(self):
        return self.once("seen", lambda: calibrate.observe(self.optimised(), self.calibration, self.tell))

    def layers(self):
        return self.once("layers", lambda: factor.prepared(self.optimised(), self.calibration, self.tell))

    def make(self, recipe):
        """The model and what there is to say about how it was made."""
        scratch = self.job.scratch
        if recipe == "fp32":
            return self.model(), {}
        if recipe == "optimised":
            made = self.optimised()
            if rewrite.same_graph(made, self.model()):
                raise Refused("there is nothing to simplify")
            return made, {}
        if recipe == "int8-dynamic":
            return quantise.dynamic(self.optimised(), scratch), {}
        if recipe in STATIC:
            return self.eight_bits(self.optimised(), self.seen(), recipe.removeprefix("int8-"))
        if recipe == "svd-int8":
            thin = self.thin()
            return self.eight_bits(thin, calibrate.observe(thin, self.calibration, self.tell), "percentile")
        if recipe == "fp16":
            return rewrite.half(self.optimised()), {"useful_on": "devices that compute in half precision"}
        if recipe in CUTS:
            return self.cut(recipe)
        if recipe == "onnx":
            if not self.job.script:
                raise Refused("it is ONNX already")
            return self.model(), {"from": "TorchScript"}
        if recipe == "torchscript":
            if self.job.script:
                raise Refused("it is TorchScript already")
            return to_script.converted(self.optimised()), {"from": "ONNX"}
        raise BadInput("unknown-recipe", f"there is no recipe {recipe!r}; there are {', '.join([*WHOLE, *CONVERTED])}")

    def eight_bits(self, model, seen, method):
        """With these activations' ranges."""
        ranges = {}
        for number, (name, one) in enumerate(seen.items()):
            self.tell(f"ranges by {method}", number, len(seen))
            ranges[name] = one.range(method)
        cut_off = [
            1.0 - max(-low, high) / one.magnitude
            for (low, high), one in zip(ranges.values(), seen.values())
            if one.magnitude > 0
        ]
        told = {
            "calibration_items": self.calibration.count,
            "activations": len(seen),
            "clipped_activations": int(sum(share > 0 for share in cut_off)),
            "clipped_range_mean": float(np.mean(cut_off or [0.0])),
        }
        return quantise.static(model, ranges, self.job.scratch), told

    def thin(self):
        """The model with its layers cut in two, as far as `svd-mild` does."""
        if ("cut", "svd-mild") not in self.known:
            self.cut("svd-mild")
        return factor.cut(self.optimised(), self.layers(), self.known[("cut", "svd-mild")])

    def cut(self, recipe):
        """The smallest that is still so near its parent."""
        top1, cosine = CUTS[recipe]
        best, tried = None, []
        for given_up in factor.GIVEN_UP:
            made = factor.cut(self.optimised(), self.layers(), given_up)
            if made is None:
                continue
            if tried and models.parameters(made) == tried[-1]["parameters"]:
                continue
            # On the calibration items, so that nothing is chosen by what accuracy is measured on.
            found = self.compare(made, "calibration")
            tried.append({"given_up": given_up, "parameters": models.parameters(made), **found})
            near = found.get("top1", 1.0) >= top1 if self.job.kind.endswith("classification") else found["cosine_mean"] >= cosine
            if near:
                best = made, given_up
        if best is None:
            seen = "; ".join(f"{one['given_up']:.2%} given up: {one.get('top1', one['cosine_mean']):.3f}" for one in tried)
            raise Refused(
                "no linear layer can be cut in two so that enough is gained and it stays as near its parent as is asked "
                f"({seen or 'all of them are needed whole'})"
            )
        if recipe != "svd-mild":
            mild = self.known.get(("cut", "svd-mild"))
            if mild is not None and mild == best[1]:
                raise Refused("it would be the same as svd-mild")
        self.known[("cut", recipe)] = best[1]
        return best[0], {"given_up": best[1], "parameters_before": models.parameters(self.model()), "tried": tried}

    def compare(self, made, on="check"):
        """With the parent on the same items, which a smaller input gets smaller and the parent in full."""
        try:
            session = models.session(made)
        except MemoryError:
            raise
        except Exception as error:
            raise Refused(f"ONNX Runtime does not take it: {models.first_line(error)}") from error
        tensors = self.check if on == "check" else self.calibration
        return check.Answers(session, tensors, self.job.output, self.job.mask).against(self.job.parent_answers(on))


class Job:
    """What is asked: see `modelless variant generate`, which writes it."""

    def __init__(self, about, folder, tensors, tell):
        self.about, self.folder, self.tell = about, folder, tell
        self.kind = about["kind"]
        self.output, self.mask, self.input = about.get("output"), about.get("mask"), about.get("input")
        self.digest, self.data = about["parent_sha256"], about["data_sha256"]
        self.store = Store(folder / about["made"])
        self.scratch = str(folder / about["made"])
        self.opened, self.open = {}, tensors
        self.parent, self.answered = None, {}
        # The parent is TorchScript, and everything is made of the ONNX that it becomes.
        self.script = about.get("script", False)

    def tensors(self, name, part):
        if name not in self.opened:
            what = "calibration set" if part == "calibration" else "labelled set"
            self.opened[name] = self.open(self.folder / name, what)
        return self.opened[name]

    def parent_answers(self, on):
        if on not in self.answered:
            session = models.parent_session(self.parent)
            try:
                self.answered[on] = check.Answers(session, self.tensors(self.about["bases"][0][on], on), self.output, self.mask)
            except Refused as why:
                raise BadInput("parent-not-usable", f"the model itself cannot be compared with: {why}") from why
        return self.answered[on]

    def run(self, say):
        """Makes everything; `say` is told of each as soon as it is known."""
        # Before anything else, so that what cannot be used is told at once.
        content = (self.folder / self.about["parent"]).read_bytes()
        if self.script:
            content = from_script.converted(content, self.about["inputs"], self.about["outputs"]).SerializeToString()
        self.parent = models.read(content)
        models.parent_session(self.parent)
        bases = [Base(self, about, self.parent, self.tell) for about in self.about["bases"]]
        wanted = [(base, recipe) for base, about in zip(bases, self.about["bases"]) for recipe in about["recipes"]]
        for number, (base, recipe) in enumerate(wanted):
            what = f"{base.name}-{recipe}".lstrip("-")
            self.tell(f"making {what}", number, len(wanted))
            say(self.one(base, recipe, what))

    def one(self, base, recipe, what):
        libraries = [onnx.__version__, models.onnxruntime.__version__, np.__version__]
        key = Store.key(self.digest, recipe, base.size, base.adapter, self.data, self.kind, self.output, libraries)
        known = self.store.find(key)
        if known is not None:
            if known["outcome"] == "made" and recipe in CUTS:
                base.known[("cut", recipe)] = known.get("how", {}).get("given_up")
            return known | {"reused": True}
        record = {"base": base.name, "recipe": recipe, "name": what, "precision": PRECISION.get(recipe, "int8")}
        started = time.monotonic()
        try:
            made, how = base.make(recipe)
            if isinstance(made, bytes):
                # Only what runs TorchScript can tell, which is done outside.
                return self.store.keep(key, record | {"outcome": "made", "how": how, **self.took(started)}, made, "pt")
            check.judge(found := base.compare(made), self.kind, exact=recipe in ("optimised", "onnx"))
            content = made.SerializeToString()
        except Refused as why:
            return self.store.keep(key, record | {"outcome": "refused", "why": str(why)})
        except (BadInput, MemoryError, OSError):
            raise
        except Exception as error:
            # Libraries that write files themselves do not always say why they could not.
            self.store.must_have_room(2 * self.parent.ByteSize())
            # Not kept: the next run may have another tool beneath it.
            return record | {"outcome": "failed", "why": f"{type(error).__name__}: {models.first_line(error)}"}
        record |= {"outcome": "made", "how": how, "check": found, "parameters": models.parameters(made)}
        return self.store.keep(key, record | self.took(started), content)

    @staticmethod
    def took(started):
        return {"seconds": round(time.monotonic() - started, 3)}


def scratch_is_cleared(folder):
    """What a run that was ended left behind."""
    for left in folder.glob("tmp*"):
        if left.is_dir():
            for file in left.iterdir():
                file.unlink()
            left.rmdir()
    for left in folder.glob(".*.part"):
        left.unlink()


def run(about, folder, tensors, say, tell):
    made = folder / about["made"]
    scratch_is_cleared(made)
    Job(about, folder, tensors, tell).run(say)


