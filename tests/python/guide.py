"""Every piece of Python in `docs/clients.md`, each in a process of its own, as a reader would run it: it prints what stands behind `#`.

    python guide.py URL GRPC VECTORS DIMENSION

Only addresses are others than it says, and VECTORS, a task whose vectors have DIMENSION numbers, stands in for `sentences`. Which variant
is the cheapest depends on the machine, so its name may be another.
"""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from calls import Calls, same

URL, GRPC, VECTORS, DIMENSION = sys.argv[1:]
ROOT = Path(__file__).resolve().parents[2]
GUIDE = "docs/clients.md"
WITHIN = 60
#: What stands in the guide, and what is here.
HERE = {"127.0.0.1:8080": URL.partition("://")[2], "127.0.0.1:8001": GRPC, "sentences": VECTORS, "384": DIMENSION}


def here(piece):
    for there, value in HERE.items():
        piece = piece.replace(there, value)
    return piece


def without_variants(lines):
    return [re.sub(r"\b\w+-(fp32|int8)\b", "VARIANT", line.strip()) for line in lines]


def run(piece):
    """A piece prints what it says."""
    done = subprocess.run([sys.executable, "-B", "-c", piece], cwd=ROOT, capture_output=True, text=True, timeout=WITHIN)
    assert done.returncode == 0, done.stderr[-2_000:]
    said = [line[2:] for line in piece.splitlines() if line.startswith("# ")]
    same(without_variants(done.stdout.splitlines()), without_variants(said))
    assert said, "it does not say what it prints"


def load(task):
    """The pieces give 500 ms, which is not meant for loading a model."""
    request = urllib.request.Request(f"{URL}/v1/tasks/{task}", b"a text", {"content-type": "text/plain"})
    urllib.request.urlopen(request, timeout=WITHIN).close()


calls = Calls()
for task in (VECTORS, "ratings"):
    load(task)
text = (ROOT / GUIDE).read_text("utf-8")
for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
    line = text.count("\n", 0, found.start()) + 1
    calls.call(GUIDE, f"the piece in line {line}", lambda: run(here(found[1])))
calls.end()
