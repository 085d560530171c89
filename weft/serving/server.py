"""The ASGI application of `weft serve`: the Open Inference Protocol over HTTP, and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias
from urllib.parse import unquote

from weft.errors import ClosedError, InputError, QueueFull, WeftError
from weft.serving.metrics import RequestMetrics
from weft.serving.pool import Pool
from weft.serving.protocol import (
    HEADER_LENGTH,
    InferRequest,
    RefusedError,
    check_outputs,
    metadata,
    read_parameters,
    read_request,
    write_response,
)
from weft.serving.repository import Repository

log = logging.getLogger("weft.serving")

LARGE = 1 << 18
"""Bytes from which on a body is read in a thread, so that other requests do not wait for it."""
PATIENCE = 0.2
"""Seconds after which the server looks whether the client of a request is still there: most are answered before."""
OUTCOMES = {400: "refused", 413: "refused", 501: "refused", 408: "timeout", 504: "timeout", 503: "overloaded"}
"""How metrics call the status of an inference."""
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class ServerOptions:
    """What a server allows."""

    version: str = ""
    """Of Weft."""
    most_bytes: int = 64 << 20
    """Of a request's body, also once it is decompressed."""
    timeout: float = 60.0
    """Seconds from the beginning of a request to its response."""
    control: bool = False
    """Whether clients may load and unload models."""
    poll: float = 0.0
    """Seconds between two looks for changed files; 0: none."""


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


class Server:
    """An ASGI application that serves a repository's models; the end of its lifespan closes them."""

    def __init__(self, repository: Repository, options: ServerOptions) -> None:
        self.repository, self.options = repository, options
        self.metrics = RequestMetrics()
        self._poll: asyncio.Task[None] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or begin and end; WebSockets are refused."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            answer = await self._answered(scope, receive)
            headers = [(b"content-length", b"%d" % len(answer.body))]
            headers += [(name.encode(), value.encode("latin-1")) for name, value in answer.headers]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        if self.options.poll:
            self._poll = asyncio.create_task(self._refresh_always())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._poll is not None:
            self._poll.cancel()
            with suppress(asyncio.CancelledError):
                await self._poll
        await asyncio.to_thread(self.repository.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _refresh_always(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll)
            try:
                await asyncio.to_thread(self.repository.refresh)
            except Exception:
                log.exception("looking for changed models failed")

    async def _answered(self, scope: Message, receive: Receive) -> _Answer:
        try:
            return await self._routed(scope, receive)
        except RefusedError as e:
            retry = (("retry-after", "1"),) if e.status == 503 else ()
            return _error(e.status, e.why, *retry)
        except Exception:
            log.exception("a request failed")
            return _error(500, "the server failed; its log says why")

    async def _routed(self, scope: Message, receive: Receive) -> _Answer:
        raw = scope.get("raw_path") or scope["path"].encode()
        root = scope.get("root_path", "")
        path = raw.decode("latin-1").partition("?")[0].removeprefix(root)
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match parts:
            case ["metrics"]:
                page = self.metrics.text({key: pool.report for key, pool in self.repository.pools.items()})
                answer, allowed = _Answer(200, page.encode(), (("content-type", "text/plain; version=0.0.4"),)), "GET"
            case ["v2"]:
                extensions = ["binary_tensor_data", *["model_repository"] * self.options.control]
                told = {"name": "weft", "version": self.options.version, "extensions": extensions}
                answer, allowed = _json(told), "GET"
            case ["v2", "health", "live"]:
                answer, allowed = _Answer(200), "GET"
            case ["v2", "health", "ready"]:
                answer, allowed = _Answer(200 if self.repository.is_ready else 503), "GET"
            case ["v2", "models", name, "infer"] | ["v2", "models", name, "versions", _, "infer"]:
                _check_method(scope, "POST")
                return await self._inferred(scope, receive, name, parts[4] if len(parts) == 6 else None)
            case ["v2", "models", name, *rest] if rest in ([], ["ready"]) or (
                len(rest) in (2, 3) and rest[0] == "versions" and rest[2:] in ([], ["ready"])
            ):
                version = rest[1] if len(rest) > 1 else None
                answer, allowed = self._model(name, version, is_ready=rest[-1:] == ["ready"]), "GET"
            case ["v2", "repository", "index"]:
                answer, allowed = _json(self.repository.index), "POST"
            case ["v2", "repository", "models", name, ("load" | "unload") as action]:
                _check_method(scope, "POST")
                return await self._controlled(name, action, receive, scope)
            case _:
                raise RefusedError(404, f"there is nothing at {path[:200]!r}")
        _check_method(scope, allowed)
        return answer

    def _model(self, name: str, version: str | None, *, is_ready: bool) -> _Answer:
        _, pool = self.repository.find(name, version)
        if is_ready:
            return _Answer(503 if pool.is_closed else 200)
        return _json(metadata(pool.graph, name, [*self.repository.versions(name)]))

    async def _controlled(self, name: str, action: str, receive: Receive, scope: Message) -> _Answer:
        if not self.options.control:
            raise RefusedError(403, "this server was started without --control")
        given = read_parameters(await self._body(scope, receive) or b"{}")
        if action == "load" and given:
            raise RefusedError(501, "models are loaded from where they are, with the options of the server")
        do = self.repository.turn_on if action == "load" else self.repository.turn_off
        await asyncio.to_thread(do, name)
        return _Answer(200)

    # -- inference ---------------------------------------------------------------------------------------------

    async def _inferred(self, scope: Message, receive: Receive, name: str, version: str | None) -> _Answer:
        began, outcome, served = monotonic(), "failed", version or ""
        try:
            served, _ = self.repository.find(name, version)
            answer = await asyncio.wait_for(self._computed(scope, receive, name, version), self.options.timeout)
            outcome = "ok"
            return answer
        except asyncio.TimeoutError:  # on Python 3.10 another one than the built-in
            outcome = "timeout"
            raise RefusedError(504, f"no answer within {self.options.timeout:g} s") from None
        except RefusedError as e:
            outcome = OUTCOMES.get(e.status, "failed")
            if e.status == 404:
                served = ""  # a label for each name that a client invents would fill the memory
            raise
        finally:
            if served:
                self.metrics.count(name, served, outcome, monotonic() - began)

    async def _computed(self, scope: Message, receive: Receive, name: str, version: str | None) -> _Answer:
        body = await self._body(scope, receive)
        length = _header(scope, HEADER_LENGTH)
        if len(body) < LARGE:
            request = read_request(body, length)
        else:
            request = await asyncio.to_thread(read_request, body, length)
        for _ in range(3):  # a pool that a newer version of its file replaces is closed meanwhile
            served, pool = self.repository.find(name, version)
            check_outputs(request, pool.outputs)
            try:
                results = await self._run(pool, request, receive)
            except ClosedError:
                continue
            break
        else:
            raise RefusedError(503, f"model {name!r} is being replaced")
        size = sum(getattr(result, "nbytes", 0) for result in results)
        write = (request, name, served, pool.outputs, results)
        if size < LARGE:
            headers, answer = write_response(*write)
        else:
            headers, answer = await asyncio.to_thread(write_response, *write)
        return _Answer(200, answer, tuple(headers.items()))

    async def _run(self, pool: Pool, request: InferRequest, receive: Receive) -> list[Any]:
        """Return the outputs; nothing is run for a client that leaves while its request waits."""
        answer: asyncio.Future[Any] | None = None
        try:
            answer = asyncio.wrap_future(pool.submit(request.inputs, timeout=0))
            await asyncio.wait({answer}, timeout=PATIENCE)
            if not answer.done():
                left: asyncio.Future[Any] = asyncio.ensure_future(receive())
                try:
                    await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    left.cancel()
            if not answer.done():
                raise RefusedError(400, "the client left")
            found: list[Any] = answer.result()
            return found
        except InputError as e:
            raise RefusedError(400, str(e)) from None
        except QueueFull as e:
            raise RefusedError(503, str(e)) from None
        except ClosedError:
            raise
        except WeftError as e:
            log.warning("a request failed: %s", e)
            raise RefusedError(500, str(e)) from None
        finally:
            if answer is not None:
                answer.cancel()  # does nothing once it is done

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        """Return the body, decompressed; RefusedError if it is larger than allowed, or the client leaves."""
        most = self.options.most_bytes
        too_large = RefusedError(413, f"the body is larger than {most} bytes")
        length = _header(scope, "content-length")
        if length is not None and length.isascii() and length.isdigit() and int(length) > most:
            raise too_large
        chunks, size, more = list[bytes](), 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RefusedError(400, "the client left")
            chunks.append(message.get("body", b""))
            size, more = size + len(chunks[-1]), message.get("more_body", False)
            if size > most:
                raise too_large
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        encoding = (_header(scope, "content-encoding") or "identity").lower()
        if encoding == "identity":
            return body
        if encoding not in ("gzip", "deflate"):
            raise RefusedError(415, f"the content-encoding {encoding[:60]!r} is neither gzip nor deflate")
        return await asyncio.to_thread(_decompressed, body, most, too_large)


def _decompressed(body: bytes, most: int, too_large: RefusedError) -> bytes:
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 32)  # tells gzip from zlib by itself
    try:
        whole = unzip.decompress(body, most + 1)
    except zlib.error as e:
        raise RefusedError(400, f"the body cannot be decompressed: {e}") from None
    if len(whole) > most:
        raise too_large
    if not unzip.eof:
        raise RefusedError(400, "the compressed body is cut off")
    return whole


def _header(scope: Message, name: str) -> str | None:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted), None)


def _check_method(scope: Message, allowed: str) -> None:
    if scope["method"] != allowed and not (allowed == "GET" and scope["method"] == "HEAD"):
        raise RefusedError(405, f"the method {scope['method'][:20]} is not {allowed}")


def _json(value: object) -> _Answer:
    return _Answer(200, json.dumps(value).encode())


def _error(status: int, why: str, *headers: tuple[str, str]) -> _Answer:
    return _Answer(status, json.dumps({"error": why}).encode(), (("content-type", "application/json"), *headers))
