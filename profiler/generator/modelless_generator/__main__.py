"""`python -m modelless_generator JOB.json`: makes what the job asks for.

Standard output has one JSON object a line: {"step", "done", "of"} while it works, {"variant": {...}} for each that was made or
refused, and at the end {"done": true} or {"error": {"name", "text"}}.
"""

import errno
import json
import pathlib
import sys
import tempfile
import time

# How often at most progress is told.
EVERY = 0.1


def out(**what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Tell:
    def __init__(self):
        self.last, self.step = 0.0, None

    def __call__(self, step, done, of):
        now = time.monotonic()
        if step != self.step or now - self.last >= EVERY:
            self.step, self.last = step, now
            out(step=step, done=done, of=of)


def main():
    if len(sys.argv) != 2:
        sys.exit("give the job: python -m modelless_generator JOB.json")
    path = pathlib.Path(sys.argv[1])
    try:
        from .data import Tensors
        from .errors import BadInput
        from .recipes import run
    except ImportError as error:
        out(error={"name": "no-tools", "text": f"its libraries cannot be loaded: {error}"})
        return 1
    try:
        job = json.loads(path.read_text())
        # The one folder that may be written to; onnxruntime's tools ask for this too.
        tempfile.tempdir = str(path.parent / job["made"])
        run(job, path.parent, Tensors, lambda variant: out(variant=variant), Tell())
    except BadInput as error:
        out(error={"name": error.name, "text": str(error)})
        return 1
    except MemoryError:
        out(error={"name": "out-of-memory", "text": "there is not enough memory for this model and its data; give it more (--memory) or a smaller calibration set"})
        return 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = "there is no more room in the output folder; make room and start again: what is made by now is kept" if full else str(error)
        out(error={"name": "disk-full" if full else "system", "text": text})
        return 1
    out(done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
