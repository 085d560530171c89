"""Ask an ASGI application, without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Response:
    """What the application answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


async def ask(
    app: Any, method: str, path: str, body: bytes | Mapping[str, Any] = b"", headers: Mapping[str, str] | None = None,
    *, chunk: int = 1 << 16,
) -> Response:
    """Return the answer to a request, whose body comes in chunks."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    messages = [
        {"type": "http.request", "body": sent[at : at + chunk], "more_body": at + chunk < len(sent)}
        for at in range(0, max(len(sent), 1), chunk)
    ]
    answers: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answers.append(message)

    named = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": named}
    await app(scope, receive, send)
    start, *rest = answers
    told = {name.decode(): value.decode() for name, value in start["headers"]}
    return Response(start["status"], told, b"".join(each["body"] for each in rest))


def asked(
    app: Any, method: str, path: str, body: bytes | Mapping[str, Any] = b"", headers: Mapping[str, str] | None = None,
    *, chunk: int = 1 << 16,
) -> Response:
    """Return what `ask` does, in an event loop of its own."""
    return asyncio.run(ask(app, method, path, body, headers, chunk=chunk))
