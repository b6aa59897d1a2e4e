"""Tells when somebody speaks, by a server that was started as `modelless up --demo vad`. Only the standard library is used.

    python stream.py [--server URL] [--each] FILE.wav ...

Each file is a stream of its own, and all are sent at once: their pieces share batches. The server remembers nothing of a stream.
What it has to know of what came before is the tensor `state`: zeros at first, afterwards what the last answer gave. So a
piece that was refused or lost can simply be asked again, of any node.
"""

import argparse
import array
import http.client
import json
import sys
import threading
import time
import urllib.parse
import wave

RATE, PIECE, STATE = 16_000, 512, 320
TARGET = "/v1/tasks/vad?latency_ms=1000"
TRIES = 50


def samples(path):
    """16 kHz, one channel, between -1 and 1; a rate that is a multiple of 16 kHz is averaged down, channels are mixed."""
    with wave.open(path) as file:
        rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
        if width != 2 or rate % RATE:
            raise SystemExit(f"{path}: expected 16 bits and a multiple of {RATE} Hz, found {8 * width} bits and {rate} Hz")
        values = array.array("h", file.readframes(file.getnframes()))
    if sys.byteorder == "big":
        values.byteswap()
    step = channels * (rate // RATE)
    whole = len(values) - len(values) % step
    return array.array("f", (sum(values[at : at + step]) / step / 32_768 for at in range(0, whole, step)))


def little(values):
    values = array.array("f", values)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


class Stream:
    """One stream: a kept connection, and the state that travels to and fro."""

    def __init__(self, server):
        url = urllib.parse.urlsplit(server)
        self.open = lambda: http.client.HTTPConnection(url.hostname, url.port, timeout=30)
        self.connection, self.state = self.open(), [0.0] * STATE

    def speech(self, audio):
        """How likely it is that somebody speaks in these 512 samples."""
        body = little(audio) + little(self.state)
        for attempt in range(TRIES):
            try:
                self.connection.request("POST", TARGET, body, {"content-type": "application/octet-stream"})
                answer = self.connection.getresponse()
                said = answer.read()
            except (http.client.HTTPException, OSError):
                self.connection.close()
                self.connection = self.open()
                status, said = 0, b"the connection was lost"
            else:
                status = answer.status
            if status == 200:
                outputs = json.loads(said)["outputs"]
                self.state = outputs["state"]["data"]
                return outputs["speech"]["data"][0]
            if status not in (0, 429, 503, 504):
                break
            # The state is still here, so asking again changes nothing.
            time.sleep(0.02 * (attempt + 1))
        raise SystemExit(f"the server did not answer a piece of sound: {said.decode(errors='replace')}")


def spoken(chances, over=0.5, under=0.35, silence=3):
    """Seconds from and to: begins where a chance is over one bound, ends where several in a row are under another."""
    found, since, quiet = [], None, 0
    for at, chance in enumerate(chances):
        quiet = quiet + 1 if chance < under else 0
        if since is None and chance >= over:
            since = at
        elif since is not None and quiet == silence:
            found.append((since, at - silence + 1))
            since = None
    if since is not None:
        found.append((since, len(chances)))
    return [(start * PIECE / RATE, end * PIECE / RATE) for start, end in found]


def run(server, path, results):
    try:
        audio, stream = samples(path), Stream(server)
        pieces = (audio[at : at + PIECE] for at in range(0, len(audio), PIECE))
        results[path] = [stream.speech(list(piece) + [0.0] * (PIECE - len(piece))) for piece in pieces]
    except (SystemExit, OSError, wave.Error) as error:
        results[path] = error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="http://127.0.0.1:8080")
    parser.add_argument("--each", action="store_true", help="print the chance of every piece, as JSON")
    parser.add_argument("files", nargs="+")
    given, results = parser.parse_args(), {}
    threads = [threading.Thread(target=run, args=(given.server, path, results)) for path in given.files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path in given.files:
        if isinstance(results[path], BaseException):
            raise SystemExit(f"{path}: {results[path]}")
        if not given.each:
            said = ", ".join(f"{start:.2f} s to {end:.2f} s" for start, end in spoken(results[path]))
            print(f"{path}: {said or 'nobody speaks'}")
    if given.each:
        print(json.dumps({path: results[path] for path in given.files}))


if __name__ == "__main__":
    main()
