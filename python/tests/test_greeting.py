"""Servers that speak TLS where HTTP is asked of them, and the other way round."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from typing import Iterator

import httpx
import pytest

from modelless import AsyncClient, Client, Retries, Unreachable
from modelless._drive import Requests
from modelless._effects import Send
from modelless._greeting import no_tls

ONCE = Retries(attempts=1)
#: What a server of TLS says to who does not: an alert, "unexpected message".
ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"


@contextmanager
def saying(words: bytes) -> Iterator[str]:
    """Whoever comes is told this, whatever it says; gives the place."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(words)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_asks_in_the_wrong_way_is_told_the_right_one(anyio_backend: str) -> None:
    for scheme, words, told in (
        ("http", ALERT, "does not answer in HTTP; perhaps its address begins with https://"),
        ("https", b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", "no TLS with .*: it does not speak TLS"),
    ):
        with saying(words) as place:
            with Client(f"{scheme}://{place}", retries=ONCE) as client, pytest.raises(Unreachable, match=told) as error:
                client.tasks.list()
            assert "modelless up" not in str(error.value)
            async with AsyncClient(f"{scheme}://{place}", retries=ONCE) as waiting:
                with pytest.raises(Unreachable, match=told):
                    await waiting.tasks.list()


def failed(cause: ssl.SSLError) -> httpx.ConnectError:
    """As httpx and what is below it raise it."""
    try:
        try:
            raise cause
        except ssl.SSLError as below:
            raise httpx.ConnectError(str(below)) from below
    except httpx.ConnectError as error:
        return error


def test_a_certificate_that_is_not_believed_is_no_server_that_is_not_running() -> None:
    unknown = ssl.SSLCertVerificationError(1, "certificate verify failed")
    unknown.verify_code, unknown.verify_message = 19, "self-signed certificate in certificate chain"
    error = Requests("https://h", {}).failed(failed(unknown), Send("GET", "/v1/tasks", 1.0))
    assert str(error).startswith("no TLS with https://h: its certificate is not believed (self-signed")
    assert "ca=FILE" in str(error) and "modelless up" not in str(error) and not error.maybe_done
    other = ssl.SSLCertVerificationError(1, "certificate verify failed")
    other.verify_code, other.verify_message = 62, "Hostname mismatch, certificate is not valid for 'h'"
    assert "Hostname mismatch" in str(no_tls(failed(other))) and "ca=FILE" not in str(no_tls(failed(other)))
    refused = httpx.ConnectError("[Errno 111] Connection refused")
    assert no_tls(refused) is None
