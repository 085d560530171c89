"""`weft serve`: models behind HTTP, by the Open Inference Protocol."""

from __future__ import annotations

import signal
import socket
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import typer

import weft
from weft.cli.console import line, note
from weft.cli.model import is_optimized
from weft.cli.options import BackendPathOption, load_flags
from weft.cli.parsing import ALL, device_orders
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError, InputError
from weft.serving.pool import Pool
from weft.serving.repository import Repository, named_sources
from weft.serving.server import Server, ServerOptions

BACKLOG = 2048
"""Connections that the system holds until the server accepts them."""

SWITCH = 0.001
"""Seconds for which a thread of Python keeps the interpreter while others wait; 0.005 by default. Threads that run
networks and the one that answers wait for each other many times in a batch."""


@load_flags(
    "device", "precision", "memory", "hints", "fallback", "backend_options", "fusing", "winograd", "overflow_check",
    "limits",
)
def serve(
    options: dict[str, Any],
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", show_default=False,
            help="Files, or folders with a sub-folder 1, 2, ... for each version; NAME=PATH gives another name.",
        ),
    ],
    host: Annotated[str, typer.Option(help="The address; 0.0.0.0 lets other machines in, see below.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    replicas: Annotated[int, typer.Option(min=1, help="Sessions for each device.")] = 1,
    processes: Annotated[
        bool, typer.Option("--processes", help="A process for each session: a driver that crashes ends it alone.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Most rows of requests that run together.")] = 1,
    batch_wait: Annotated[float, typer.Option(min=0, help="Milliseconds that a batch waits to be full.")] = 0.0,
    queue: Annotated[int, typer.Option(min=1, help="Most waiting requests for each model.")] = 2048,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for a request, and for the end.")] = 60.0,
    max_mib: Annotated[float, typer.Option(min=0.001, help="MiB of a request.")] = 64.0,
    poll: Annotated[float, typer.Option(min=0, help="Seconds between looks for changed files; 0: only SIGHUP.")] = 0.0,
    control: Annotated[bool, typer.Option("--control", help="Let clients load and unload models.")] = False,
    backend_path: BackendPathOption = None,
) -> None:
    """Serve models over HTTP by the Open Inference Protocol, version 2, until Ctrl-C or SIGTERM.

    Each device that --device lists gets sessions; "all" is every GPU once. There is no authentication and no TLS: a
    server that other machines reach belongs behind a proxy that has both.
    """
    uvicorn = _uvicorn()
    places = _places(options.pop("device"))
    listener = _listener(host, port)
    wait = batch_wait / 1000
    given = {"replicas": replicas, "processes": processes, "batch": batch, "batch_wait": wait, "queue": queue}
    opened = partial(_opened, places=places, options=options, given=given)
    repository = Repository(named_sources(models), opened)
    with listener:
        try:
            repository.load()
            allowed = ServerOptions(weft.__version__, round(max_mib * (1 << 20)), timeout, control, poll)
            for name, version in repository.pools:
                line(f"{name}: version {version}")
            shown, bound = listener.getsockname()[:2]
            line(f"http://{f'[{shown}]' if ':' in shown else shown}:{bound}/v2")
            config = uvicorn.Config(
                Server(repository, allowed), log_level="warning", access_log=False, lifespan="on",
                server_header=False, timeout_graceful_shutdown=max(round(timeout), 1),
            )
            _take_signals(repository)
            sys.setswitchinterval(SWITCH)
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            repository.close()


def _uvicorn() -> Any:
    try:
        return import_module("uvicorn")
    except ImportError as e:
        raise ConfigError("weft serve needs uvicorn", why=str(e), fix='pip install "weft[serve]"') from None


def _places(device: str) -> Any:
    if device.strip() == ALL:
        return ALL
    return [[registry.choose(name)[0].device for name in names] for names in device_orders(device)]


def _opened(path: Path, *, places: Any, options: dict[str, Any], given: dict[str, Any]) -> Pool:
    """Return the pool of a model, prepared for its requests as far as it can be."""
    pool = Pool(path, **given) if is_optimized(path) else Pool(path, places, **given, **options)
    try:
        pool.warm()
    except InputError as e:
        note(f"{path.name} is prepared by its first requests: {e.short}")
    except BaseException:
        pool.close(cancel=True)
        raise
    return pool


def _listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens; ConfigError if the address is not free. Raise the limit of open files, too."""
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ImportError, OSError, ValueError):  # Windows, or a container that forbids it
        pass
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as e:
        fix = "choose another --port, or an address of this machine as --host"
        raise ConfigError(f"{host}:{port} cannot be listened on", why=e.strerror or str(e), fix=fix) from None


def _take_signals(repository: Repository) -> None:
    """Look for changed files at each SIGHUP; exit as usual after SIGTERM, which uvicorn passes on when it has ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, lambda *_: Thread(target=repository.refresh, daemon=True).start())
