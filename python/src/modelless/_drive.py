"""The two drivers: they perform what operations ask for, over httpx, blocking or on an event loop."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextvars import copy_context
from time import monotonic
from typing import Any, AsyncIterator, Dict, Iterator, List, Mapping, Union

import anyio
import anyio.to_thread
import httpx

from . import _trace
from ._effects import Now, Operation, Pause, Reply, Send, T, Together, Upload, Work
from ._errors import Timeout, Unreachable
from ._greeting import no_http, no_tls

#: A piece of an upload.
PIECE = 1 << 20
#: The longest that a connection may take to come about, in seconds.
CONNECT = 10.0
MOMENT = 0.05
#: URLs whose parts are kept: queries of a program rarely have more different goals.
URLS_MAX = 512
#: The stream of a response that was read.
NOTHING = httpx.ByteStream(b"")


class Left(Mapping[str, float]):
    """httpx's limits. It asks for each as that begins, and gets what is left then: four fixed ones would add up."""

    def __init__(self, seconds: float):
        self._end = monotonic() + seconds

    def over(self) -> bool:
        """Whether nothing is."""
        return monotonic() >= self._end

    def __getitem__(self, name: str) -> float:
        left = max(self._end - monotonic(), 0.001)
        return min(left, CONNECT) if name == "connect" else left

    def __iter__(self) -> Iterator[str]:
        return iter(("connect", "read", "write", "pool"))

    def __len__(self) -> int:
        return 4


class Requests:
    """Makes httpx's requests, with what is the same for all of them done once."""

    def __init__(self, server: str, headers: Dict[str, str]):
        self.server = server
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        # Of two no server would take either.
        self._traced = "traceparent" not in headers
        self._urls: Dict[str, httpx.URL] = {}

    def make(self, send: Send, left: Left, content: Any) -> httpx.Request:
        """One request. Content that is no `bytes` is as long as the request says."""
        url = self._urls.get(send.target)
        if url is None:
            if len(self._urls) >= URLS_MAX:
                self._urls.clear()
            url = self._urls[send.target] = httpx.URL(self.server + send.target)
        headers = [*self._headers, *_trace.headers()] if self._traced else list(self._headers)
        if send.media is not None:
            headers.append((b"content-type", send.media.encode()))
        if send.fresh:
            headers.append((b"cache-control", b"no-cache"))
        if not isinstance(content, bytes):
            size = len(send.content) if send.upload is None else send.upload.size
            headers.append((b"content-length", str(size).encode()))
        return httpx.Request(send.method, url, headers=headers, content=content, extensions={"timeout": left})

    def late(self, send: Send, what: str = "no answer came") -> Timeout:
        """It took too long."""
        return Timeout(f"{self.server}: {what} within {send.timeout:.3g} s")

    def failed(self, error: httpx.TransportError, send: Send) -> Unreachable:
        """What went wrong, for people."""
        if isinstance(error, httpx.ConnectTimeout):
            return _never_sent(f"cannot reach {self.server}: nobody took the connection in time")
        if isinstance(error, httpx.TimeoutException):
            if isinstance(error, httpx.PoolTimeout):
                return self.late(send, "all connections were in use")
            return self.late(send)
        why = str(error) or type(error).__name__
        tls = no_tls(error)
        if tls is not None:
            message = f"no TLS with {self.server}: {tls}"
            return _never_sent(message) if isinstance(error, httpx.ConnectError) else Unreachable(message)
        if no_http(self.server, error):
            return Unreachable(f"{self.server} does not answer in HTTP; perhaps its address begins with https://")
        if isinstance(error, httpx.ConnectError):
            return _never_sent(
                f"cannot reach {self.server}: {why}. Is a server running? Start one with `modelless up`, or name another: "
                "Client(URL), or MODELLESS_SERVER"
            )
        return Unreachable(f"{self.server}: the connection broke: {why}")


def _never_sent(message: str) -> Unreachable:
    error = Unreachable(message)
    error.maybe_done = False
    return error


def reply(response: httpx.Response, body: bytes) -> Reply:
    """What came back, without httpx."""
    # httpx's responses and their streams hold each other: what was sent would be in memory until cycles are looked for.
    response.stream = NOTHING
    headers = {name.decode("latin-1").lower(): value.decode("utf-8", "replace") for name, value in response.headers.raw}
    return Reply(response.status_code, headers, body)


class SyncDriver:
    """Blocks until an operation has ended."""

    def __init__(self, http: httpx.Client, requests: Requests):
        self.http = http
        self.requests = requests
        #: Set when nobody waits any more for what is performed.
        self.over = threading.Event()

    def run(self, operation: Operation[T]) -> T:
        """Performs all of an operation."""
        try:
            effect = next(operation)
            while True:
                if self.over.is_set():
                    operation.close()
                    raise CancelledError
                try:
                    result = self._perform(effect)
                except BaseException as error:  # Ctrl-C, too: what was begun at the server may want to be ended there
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as ended:
            value: T = ended.value
            return value

    def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Send):
            return self._send(effect)
        if isinstance(effect, Now):
            return monotonic()
        if isinstance(effect, Pause):
            return self.over.wait(effect.seconds)
        if isinstance(effect, Work):
            return effect.run()
        return self._together(effect)

    def _send(self, send: Send) -> Reply:
        left = Left(send.timeout)
        small = send.upload is None and len(send.content) <= PIECE
        content = send.content if small else self._in_time(send, left, _pieces(send))
        try:
            response = self.http.send(self.requests.make(send, left, content), stream=True)
            try:
                body = b"".join(self._in_time(send, left, response.iter_bytes()))
            finally:
                response.close()
        except httpx.TransportError as error:
            raise self.requests.failed(error, send) from error
        return reply(response, body)

    def _in_time(self, send: Send, left: Left, pieces: Iterator[bytes]) -> Iterator[bytes]:
        # A limit of httpx is for one piece: who takes or gives one after another would never be late.
        for piece in pieces:
            if left.over():
                raise self.requests.late(send)
            yield piece

    def _together(self, effect: Together) -> List[Any]:
        workers = min(effect.at_once, len(effect.operations))
        if workers <= 1:
            return [self.run(operation) for operation in effect.operations]
        parts = SyncDriver(self.http, self.requests)
        pool = ThreadPoolExecutor(workers, thread_name_prefix="modelless")
        try:
            # Each in the context of who asks: the trace stands in that.
            running = [pool.submit(copy_context().run, parts.run, operation) for operation in effect.operations]
            wait(running, return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)  # those that have not begun, where another failed
        except BaseException:
            # Ctrl-C: what is under way ends with its request, and nothing else of it begins.
            parts.over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        # In their order, and what has not begun comes after all that has: the first that is raised is no cancellation.
        return [one.result() for one in running]


def _pieces(send: Send) -> Iterator[bytes]:
    upload = send.upload
    if upload is None:
        for at in range(0, len(send.content), PIECE):
            yield send.content[at : at + PIECE]
        return
    with open(upload.path, "rb") as file:
        while piece := file.read(PIECE):
            yield piece
            upload.sent(len(piece))


class AsyncDriver:
    """Awaits an operation, on asyncio or trio."""

    def __init__(self, http: httpx.AsyncClient, requests: Requests):
        self.http = http
        self.requests = requests

    async def run(self, operation: Operation[T]) -> T:
        """Performs all of an operation. One that is cancelled may have a last word; nothing but that word's own limit ends it."""
        interrupted = False
        try:
            effect = next(operation)
            while True:
                try:
                    if interrupted:
                        with anyio.CancelScope(shield=True):
                            result = await self._perform(effect)
                    else:
                        result = await self._perform(effect)
                except BaseException as error:
                    interrupted = interrupted or not isinstance(error, Exception)
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as ended:
            value: T = ended.value
            return value

    async def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Send):
            return await self._send(effect)
        if isinstance(effect, Now):
            return monotonic()
        if isinstance(effect, Pause):
            return await anyio.sleep(effect.seconds)
        if isinstance(effect, Work):
            return await anyio.to_thread.run_sync(effect.run)
        return await self._together(effect)

    async def _send(self, send: Send) -> Reply:
        content: Union[bytes, AsyncIterator[bytes]] = send.content if send.upload is None else _async_pieces(send.upload)
        left = Left(send.timeout)
        # A moment later than httpx's own limits, which know what was waited for.
        with anyio.move_on_after(max(send.timeout, 0.0) + MOMENT):
            try:
                response = await self.http.send(self.requests.make(send, left, content))
            except httpx.TransportError as error:
                raise self.requests.failed(error, send) from error
            return reply(response, response.content)
        raise self.requests.late(send)

    async def _together(self, effect: Together) -> List[Any]:
        results: List[Any] = [None] * len(effect.operations)
        failed: List[Exception] = []
        left = iter(enumerate(effect.operations))

        async with anyio.create_task_group() as group:

            async def worker() -> None:
                for at, operation in left:
                    try:
                        results[at] = await self.run(operation)
                    except Exception as error:
                        failed.append(error)
                        group.cancel_scope.cancel()
                        return

            for _ in range(min(effect.at_once, len(effect.operations))):
                group.start_soon(worker)
        if failed:
            raise failed[0]
        return results


async def _async_pieces(upload: Upload) -> AsyncIterator[bytes]:
    async with await anyio.open_file(upload.path, "rb") as file:
        while piece := await file.read(PIECE):
            yield piece
            upload.sent(len(piece))
