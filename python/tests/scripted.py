"""A server that answers as it is told, for what a good one never does: breaking off, refusing, taking its time."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Tuple

DECISION = {
    "modelless-variant": "v-fp32",
    "modelless-model": "v",
    "modelless-query-id": "name",
    "modelless-reason": "only one that meets the goals",
}
TASK = json.dumps({"name": "t", "kind": "tensor", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]})
ANSWER = json.dumps({"outputs": {"y": {"shape": [1], "datatype": "FP32", "data": [1.0]}}})


@dataclass
class Asked:
    """A request as it came."""

    method: str
    target: str
    headers: Dict[str, str]
    body: bytes
    #: Which connection it came on.
    connection: int


@dataclass
class Scripted:
    """Answers requests for the task's description by itself, and the others with the next of `replies`."""

    replies: List[Callable[[socket.socket], bool]] = field(default_factory=list)
    asked: List[Asked] = field(default_factory=list)
    #: What else than the task and queries is asked for: `METHOD /path` to a reply.
    others: Dict[str, Callable[[socket.socket], bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections = 0
        self._open: List[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def queries(self) -> List[Asked]:
        """Those that were no request for the description."""
        return [one for one in self.asked if one.method != "GET"]

    def close(self) -> None:
        """Ends every connection."""
        self._listener.close()
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._connections += 1
            threading.Thread(target=self._serve, args=(connection, self._connections), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            while True:
                asked = _read(connection, number)
                if asked is None:
                    break
                self.asked.append(asked)
                path = asked.target.split("?")[0]
                other = self.others.get(f"{asked.method} {path}")
                if other is None and asked.method == "GET":
                    other = reply(200, TASK)
                if not (other or self.replies.pop(0))(connection):
                    break
        except OSError:
            pass
        finally:
            connection.close()


def _read(connection: socket.socket, number: int) -> Optional[Asked]:
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(65536)
        if not piece:
            return None
        head += piece
    text, _, body = head.partition(b"\r\n\r\n")
    first, *lines = text.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        body += connection.recv(65536)
    method, target, _ = first.split(" ")
    return Asked(method, target, headers, body, number)


def reply(status: int, body: str, headers: Optional[Dict[str, str]] = None) -> Callable[[socket.socket], bool]:
    """A whole answer."""

    def answer(connection: socket.socket) -> bool:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        text = f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\n{lines}content-length: {len(body)}\r\n\r\n{body}"
        connection.sendall(text.encode())
        return True

    return answer


def good() -> Callable[[socket.socket], bool]:
    """The answer to a query."""
    return reply(200, ANSWER, DECISION)


def busy(after: Optional[str] = None) -> Callable[[socket.socket], bool]:
    """Not now."""
    headers = {} if after is None else {"retry-after": after}
    return reply(503, '{"error": "too many queries wait", "reason": "queue_full"}', headers)


def broken(connection: socket.socket) -> bool:
    """The connection ends without an answer."""
    return False


def silent(connection: socket.socket) -> bool:
    """Nothing comes until the other side has gone."""
    connection.recv(1)
    return False


def goals(asked: Asked) -> List[Tuple[str, str]]:
    """What stood in the URL."""
    from urllib.parse import parse_qsl

    return parse_qsl(asked.target.partition("?")[2])
