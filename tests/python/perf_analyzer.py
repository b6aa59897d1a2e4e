"""NVIDIA's load generator, unmodified, against the demo: over both protocols, with goals, batches, streams, and what it refuses.

    python perf_analyzer.py URL HOST:PORT PICTURE PROGRAM

The server runs on this machine, as the same user, with `--shared-memory`.

PROGRAM is the path of `perf_analyzer`, or `not run: ` and why it cannot be had here.
"""

import base64
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

from calls import Calls

URL, GRPC, PICTURE, PROGRAM = sys.argv[1:]
REQUESTS = 50


def run(*args):
    command = [PROGRAM, "-m", *args, "--request-count", str(REQUESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def answers(*args, rows=1, at_once=1):
    said = run(*args)
    assert f"Request count: {REQUESTS}\n" in said, said
    # Besides its own count it reports the server's, in queries; it asks for that while the first requests may be on their way.
    counted = int(re.search(r"Inference count: (\d+)\n", said)[1])
    assert (REQUESTS - at_once) * rows <= counted <= REQUESTS * rows, said


def refuses(*args):
    said = run(*args)
    assert "no variant reaches this accuracy" in said, said


def pictures(folder):
    """A picture as its input data: a string with its length before it, in base64."""
    picture = pathlib.Path(PICTURE).read_bytes()
    element = base64.b64encode(struct.pack("<I", len(picture)) + picture).decode()
    data = pathlib.Path(folder, "pictures.json")
    data.write_text(json.dumps({"data": [{"image": {"b64": element, "shape": [1]}}]}))
    return ["fashion", "--input-data", str(data)]


def main():
    calls = Calls()
    http, grpc = ["-u", URL.removeprefix("http://")], ["-u", GRPC, "-i", "grpc"]
    tensors = ["fashion-tensor", "--input-data", "zero"]
    floor = lambda accuracy: ["--request-parameter", f"accuracy:{accuracy}:string"]
    with tempfile.TemporaryDirectory() as folder:
        image = pictures(folder)
        four = lambda *args: answers(*args, "--concurrency-range", "4", at_once=4)
        eight = lambda *args: answers(*args, "-b", "8", rows=8)
        shared = ["--shared-memory", "system", "--output-shared-memory-size", "4096"]
        tried = [
            ("HTTP", "tensors, 4 at once", four, [*tensors, *http]),
            ("HTTP", "pictures", answers, [*image, *http]),
            ("HTTP", "8 rows in a request", eight, [*tensors, *http]),
            ("HTTP", "goals in headers", answers, [*tensors, *http, "-H", "modelless-accuracy: 0.9"]),
            ("HTTP", "shared memory", answers, [*tensors, *http, *shared]),
            ("HTTP", "a floor out of reach", refuses, [*tensors, *http, "-H", "modelless-accuracy: 0.999"]),
            ("gRPC", "tensors, 4 at once", four, [*tensors, *grpc]),
            ("gRPC", "pictures", answers, [*image, *grpc]),
            ("gRPC", "8 rows in a request", eight, [*tensors, *grpc]),
            ("gRPC", "a stream", four, [*tensors, *grpc, "--async", "--streaming"]),
            ("gRPC", "shared memory", answers, [*tensors, *grpc, *shared]),
            ("gRPC", "goals as parameters", answers, [*tensors, *grpc, *floor(0.9)]),
            ("gRPC", "a floor out of reach", refuses, [*tensors, *grpc, *floor(0.999)]),
        ]
        for protocol, name, what, args in tried:
            client = f"perf_analyzer {protocol}"
            if PROGRAM.startswith("not run: "):
                calls.not_run(client, name, PROGRAM.removeprefix("not run: "))
            else:
                calls.call(client, name, lambda: what(*args))
    calls.end()


main()
