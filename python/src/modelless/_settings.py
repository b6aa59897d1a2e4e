"""What a client is made with: the server's address, headers, connections."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from os import PathLike
from typing import Any, Dict, Mapping, Optional, Tuple, Union
from urllib.parse import urlsplit

import httpx

from ._core import Core
from ._drive import Requests
from ._errors import InputError
from ._retry import Budget, Retries
from ._version import VERSION

#: Where a server listens that was started with `modelless up`.
USUAL_SERVER = "http://127.0.0.1:8080"
#: Seconds for which a connection is kept open after it was used last.
KEPT = 30.0

#: A certificate and its key, in PEM files.
Certificate = Tuple[Union[str, "PathLike[str]"], Union[str, "PathLike[str]"]]


@dataclass
class Trust:
    """Whom an https server is believed, and what is shown to it."""

    verify: Any
    ca: Optional[Union[str, PathLike[str]]]
    certificate: Optional[Certificate]

    def context(self) -> Any:
        """As httpx takes it."""
        ca = self.ca or os.environ.get("MODELLESS_CA") or None
        if self.verify is not True:
            if self.ca is not None or self.certificate is not None:
                raise InputError("give either verify, or ca and certificate")
            return self.verify
        if ca is None and self.certificate is None:
            return True
        try:
            context = httpx.create_ssl_context() if ca is None else ssl.create_default_context(cafile=os.fspath(ca))
        except OSError as error:  # of which those of ssl are
            raise InputError(f"ca: {os.fspath(ca or '')!r} is no file of certificates in PEM: {error}") from error
        if self.certificate is not None:
            cert, key = (os.fspath(path) for path in self.certificate)
            try:
                context.load_cert_chain(cert, key)
            except OSError as error:  # of which those of ssl are
                raise InputError(f"certificate: {cert!r} and {key!r} are no certificate and its key in PEM: {error}") from error
        return context


class Settings:
    """The same for both clients."""

    def __init__(
        self,
        server: Optional[str],
        api_key: Optional[str],
        headers: Optional[Mapping[str, str]],
        retries: Optional[Retries],
        connections: int,
        at_once: int,
        trust: Trust,
    ):
        if connections < 1 or at_once < 1:
            raise InputError("connections and at_once are at least 1")
        self.server = address(server)
        self.core = Core(Budget(retries or Retries()), min(at_once, connections))
        self.requests = Requests(self.server, _headers(self.server, key(api_key), headers or {}))
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEPT)
        # Reading all certificates takes longer than many a query, and http needs none.
        secure = trust.context() if self.server.startswith("https:") else False
        self.http: Dict[str, Any] = {"limits": limits, "verify": secure, "timeout": None}


def address(server: Optional[str]) -> str:
    """The address of a server: the one that is given, `MODELLESS_SERVER`, or the usual one."""
    given = (server or os.environ.get("MODELLESS_SERVER") or USUAL_SERVER).rstrip("/")
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise InputError(f"{given!r} is no address of a server; expected something like {USUAL_SERVER}")
    return given


def key(given: Optional[str]) -> Optional[str]:
    """The key to present: the one that is given, or `MODELLESS_KEY`. No message says what it is."""
    text = (os.environ.get("MODELLESS_KEY", "") if given is None else given).strip()
    if not text:
        return None
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise InputError("the key holds something that no key has; it is a word like mlk_ and 64 hexadecimal digits")
    return text


def _headers(server: str, api_key: Optional[str], own: Mapping[str, str]) -> Dict[str, str]:
    """Those of every request. Names in lower case."""
    usual = {"host": urlsplit(server).netloc.rpartition("@")[2], "accept": "*/*", "user-agent": f"modelless-python/{VERSION}"}
    if api_key is not None:
        usual["authorization"] = f"Bearer {api_key}"
    return {**usual, **{name.lower(): value for name, value in own.items()}}


def parameters(top_k: Optional[int], more: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """How an answer is to look."""
    return {**(more or {}), **({} if top_k is None else {"top_k": top_k})}
