"""The options of a load: each is declared, checked and described here, and nowhere else.

`weft.load`, `weft.optimize`, `Runtime.load`, the flags of the command line and docs/options.md take theirs from
`LoadOptions`.
"""

# ruff: noqa: RUF009  (`_option` makes a dataclass field)

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from weft.core.contract.backend_options import BackendOptions
from weft.core.contract.profile import Profile, Profiled
from weft.core.contract.session_config import (
    BackendConfig,
    ForwardType,
    MemoryMode,
    Power,
    Precision,
    Wait,
    member,
)
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Limits
from weft.core.passes import AnyPass, Pass, PassGroup
from weft.core.placement.debug_nodes import DebugSink, FileSink
from weft.core.registry.device_choice import DeviceName
from weft.core.session.pipeline import Progress
from weft.errors import ConfigError, brief

if TYPE_CHECKING:
    from weft.core.session.runtime import Runtime

F = TypeVar("F", bound=Callable[..., Any])
FALLBACKS = ("cpu", "ort", "error")


class _LoadingKeywords(TypedDict, total=False):
    profile: Profiled
    progress: Progress | None
    overflow_check: bool
    wait: str | Wait


class RuntimeKeywords(_LoadingKeywords, total=False):
    """The keywords of `Runtime.load`: those that a saved network takes."""

    backend_options: BackendOptions | None


class OptimizeKeywords(TypedDict, total=False):
    """The keywords of `weft.optimize`."""

    precision: str | Precision
    memory: str | MemoryMode
    power: str | Power
    fusing: bool
    winograd: bool
    shapes: Mapping[str, Shape] | None
    fallback: str
    hints: Mapping[str, DeviceName] | None
    debug: DebugSink | str | os.PathLike[str] | None
    backend_options: BackendOptions | None
    limits: Limits | Mapping[str, float] | None
    signature: str | None
    passes: Sequence[AnyPass]
    runtime: Runtime | None


class PoolKeywords(OptimizeKeywords, _LoadingKeywords, total=False):
    """The keywords of `weft.Pool`: those of `weft.load`, but for a state, which belongs to one session."""


class LoadKeywords(PoolKeywords, total=False):
    """The keywords of `weft.load`."""

    state: bool | Mapping[str, str]


@dataclass(frozen=True)
class Option:
    """What is said of an option: `values` it takes, and `doc`, a few sentences of Markdown.

    `flags` are its names on the command line, "" if it has none, and `flag_help` their help; "{doc}" in it stands for
    `doc`. `variable` is the environment variable that sets its default. An option that is `fixed` belongs to how a
    network is optimised: a saved network takes no other value.
    """

    values: str
    doc: str
    flags: tuple[str, ...] = ()
    flag_help: str = "{doc}"
    variable: str = ""
    fixed: bool = True
    check: Callable[[str, Any], object] | None = None
    """Returns the value as `LoadOptions` keeps it, given the option's name and what a caller passes."""

    @property
    def help(self) -> str:
        """Return the help of the flags."""
        return self.flag_help.replace("{doc}", self.doc).replace("`", "")


def _option(default: object, values: str, doc: str, **more: Any) -> Any:
    """Return a field of `LoadOptions`; `more` are fields of `Option`."""
    return field(default=default, metadata={"option": Option(values, doc, **more)})


def _member(kind: type[Any], name: str, value: object) -> object:
    return member(kind, value, name)


def _text(name: str, value: object) -> object:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name}={brief(repr(value))} is no text", fix=f"pass {name}= the name that the model has")
    return value


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name}={brief(repr(value))} is neither on nor off", fix=f"pass {name}=True or False")
    return bool(value)


def _fallback(name: str, value: object) -> object:
    if value not in FALLBACKS:
        raise ConfigError(f"{name}={value!r} is not known", fix='use "cpu", "ort" or "error"')
    return value


def _hints(name: str, value: Any) -> Mapping[str, DeviceName]:
    """Return hints as they are; ConfigError unless they are a mapping of names to devices."""
    hints = {} if value is None else value
    problems: list[str] = [] if isinstance(hints, Mapping) else [f"they are a {type(hints).__name__}"]
    if not problems:
        problems += [f"{brief(repr(node))} is no name" for node in hints if not isinstance(node, str)]
        strange = [d for d in hints.values() if not isinstance(d, (str, ForwardType))]
        problems += [f"{brief(repr(d))} is no device" for d in strange]
    if problems:
        fix = 'write {name or pattern of nodes: device}: {"head/*": "cpu"}'
        raise ConfigError(f"{name}={brief(repr(hints))} are not understood", why="; ".join(problems), fix=fix)
    return dict(hints)


def _passes(name: str, given: Any) -> tuple[AnyPass, ...]:
    """Return a user's passes; ConfigError for what is no pass, and for two passes of one name."""
    if isinstance(given, (Pass, PassGroup)):
        given = (given,)
    listed = tuple(given) if isinstance(given, Iterable) else (given,)
    problems = [f"{brief(repr(each))} is no pass" for each in listed if not isinstance(each, (Pass, PassGroup))]
    names = Counter(each.name for each in listed if isinstance(each, (Pass, PassGroup)))
    problems += [f"{count} passes are called {each!r}" for each, count in names.items() if count > 1]
    if problems:
        fix = "pass a list of weft.extend.Pass, such as weft.extend.graph_pass makes of functions"
        raise ConfigError(f"{name}= is not understood", why="; ".join(problems), fix=fix)
    return listed


def _sink(name: str, debug: object) -> object:
    """Return what receives debug records; ConfigError for what is neither a function nor a file that can be written."""
    if debug is None:
        return None
    if isinstance(debug, (str, os.PathLike)):
        path = Path(debug)
        why = "" if path.parent.is_dir() else f"there is no folder {path.parent}"
        why = "it is a folder" if path.is_dir() else why
        if why:
            raise ConfigError(
                f"{name}={str(path)!r} cannot be written", why=why, fix="name a file in a folder that exists"
            )
        return FileSink(path)
    if not callable(debug):
        fix = "pass a function of one DebugRecord, or the path of a file"
        raise ConfigError(f"{name}={brief(repr(debug))} cannot be called and is no path", fix=fix)
    return debug


def _progress(name: str, value: object) -> object:
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={brief(repr(value))} cannot be called", fix="pass a function of two numbers")
    return value


def _profile(name: str, value: Profiled) -> Profiled:
    Profile.of(value)  # which raises ConfigError
    return value


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a caller asks of a load, checked; `Option` in each field's metadata describes it."""

    device: DeviceName | Sequence[DeviceName] = _option(
        "auto", 'an id ("vulkan", "opencl:1"), a `ForwardType`, or a list of them in order of preference',
        'Where the network runs. "auto" takes the best device found.',
        flags=("--device", "-d"),
        flag_help='Devices to run on in turn, with commas: "vulkan,cpu". "vulkan+opencl" is one run, in which OpenCL '
        'takes the nodes that Vulkan refuses. "all" is every device found.',
    )
    precision: Precision = _option(
        Precision.HIGH, '"high", "normal", "low"',
        "high is float32; normal is faster where the GPU has matrix units, and nearly as exact; low stores float16. "
        "All sums are float32.",
        flags=("--precision",), check=partial(_member, Precision),
    )
    memory: MemoryMode = _option(
        MemoryMode.NORMAL, '"normal", "limit"',
        "limit uses less memory: small scratch buffers, and no second copies of weights.",
        flags=("--memory",), check=partial(_member, MemoryMode),
    )
    power: Power = _option(
        Power.NORMAL, '"normal", "high", "low"',
        "What to ask of a device's clocks. Only a backend that can set clocks grants it; the report says whether it "
        "did.",
        check=partial(_member, Power),
    )
    fusing: bool = _option(
        True, "bool", "Whether a device may compute several nodes in one kernel.",
        flags=("--fusing/--no-fusing",), check=_switch,
    )
    winograd: bool = _option(
        True, "bool", "Whether large convolutions may use Winograd's method, which is faster and less exact.",
        flags=("--winograd/--no-winograd",), check=_switch,
    )
    shapes: Mapping[str, Shape] | None = _option(
        None, '{"x": (1, 3, 224, 224)}', "Shapes of inputs whose sizes the model leaves open. Without them, the first "
        "run sets the sizes.",
        flags=("--shape",),
        flag_help="The shape of an input, NAME=1,3,224,224, or the size of a dimension that the model names, NAME=2",
    )
    fallback: str = _option(
        "cpu", '"cpu", "ort", "error"',
        "What happens to a node that no named device supports: it runs on the CPU, with a warning, or `UnsupportedOps` "
        "is raised. cpu is numpy. ort is ONNX Runtime, which is faster, and numpy for what it refuses. With error, a "
        "node that its first device refuses is an error too.",
        flags=("--strict",),
        flag_help="Refuse a network that a device cannot run whole; else the CPU takes the rest.",
        check=_fallback,
    )
    hints: Mapping[str, DeviceName] = _option(
        None, '{"head/*": "cpu"}',
        "The device of a node, by its name or a pattern of names. If that device refuses the node, the next one is "
        'asked; with fallback="error" the refusal is an error.',
        flags=("--hint",),
        flag_help='The device of a node, NAME=DEVICE; NAME may be a pattern, "head/*=cpu". May be repeated.',
        check=_hints,
    )
    debug: DebugSink | None = _option(
        None, "a function of a `DebugRecord`, or the path of a file",
        "Gets every output of every node in each run; a file gets one line of JSON for each. An exception of the "
        "function ends the run.",
        check=_sink,
    )
    profile: Profiled = _option(
        False, 'bool, "span"',
        'Whether to measure each run, for `Session.profile`. "span" measures all launches of a run together.',
        fixed=False, check=_profile,
    )
    backend_options: BackendOptions | None = _option(
        None, '{"vulkan": {"tuning": False}}',
        "Options of the backends, by id; `weft devices --options` lists them.",
        flags=("--backend-option",),
        flag_help="An option of a backend, BACKEND.NAME=VALUE, as weft devices --options lists them; may be repeated.",
        fixed=False,
    )
    limits: Limits = _option(
        None, '`Limits`, or {"nodes": 1_000_000}',
        "What the model may cost before it runs: nodes, bytes of constants, and the bytes and seconds of folding "
        "constants. `ModelError` says which limit a model exceeds; what exceeds a limit of folding is computed in "
        "every run instead.",
        flags=("--limit",),
        flag_help="What the model may cost before it runs, NAME=NUMBER: nodes, constant_bytes, folding_bytes or "
        "folding_seconds; may be repeated.",
        check=lambda name, value: Limits.of(value),
    )
    signature: str | None = _option(
        None, '"serving_default"',
        "Which of its signatures a TensorFlow Lite model runs. By default the first subgraph's.",
        flags=("--signature",), check=_text,
    )
    passes: tuple[AnyPass, ...] = _option(
        (), "a list of `weft.extend.Pass`", "Your own rewrites, which run among the standard ones.", check=_passes
    )
    runtime: Runtime | None = _option(
        None, "a `Runtime`", "The runtime that holds the session. By default that of the process.", fixed=False
    )
    progress: Progress | None = _option(
        None, "a function of two numbers",
        "Called after each node is prepared, with the nodes prepared and all nodes of that device. An exception of the "
        "function stops the load.",
        fixed=False, check=_progress,
    )
    overflow_check: bool = _option(
        True, "bool",
        "At precision low: compute in float32 what the first run finds beyond float16, and repeat that run.",
        flags=("--overflow-check/--no-overflow-check",), fixed=False, check=_switch,
    )
    wait: Wait = _option(
        Wait.AUTO, '"auto", "first", "all"',
        "What the load waits for. first: for general kernels; better ones take their place between two runs when they "
        "are ready. all: for all kernels. auto: first on GPUs, all on software devices.",
        variable="WEFT_WAIT", fixed=False, check=partial(_member, Wait),
    )
    state: bool | Mapping[str, str] = _option(
        False, 'bool, {"past*": "present*"}',
        "Outputs that are inputs of the next run, by input, such as the keys and values of a text. The session keeps "
        "them; `Session.state` resets, saves and rewinds them. True finds the names that exporters use.",
        flags=("--state",),
        flag_help='An output that is an input of the next run, INPUT=OUTPUT: "past*=present*"; auto finds the names '
        "that exporters use. It is empty before each run. May be repeated.",
    )

    def __post_init__(self) -> None:
        """Check every value; ConfigError names the option."""
        for name, each in options().items():
            if each.check is not None:
                object.__setattr__(self, name, each.check(name, getattr(self, name)))

    @classmethod
    def of(cls, given: Mapping[str, Any], keywords: type = LoadKeywords, *, caller: str = "weft.load") -> LoadOptions:
        """Return the options that a caller passes by name; ConfigError names the nearest one for an unknown name."""
        known = {"device", *keywords.__annotations__}
        wrong = [name for name in given if name not in known]
        if wrong:
            raise ConfigError(
                f"{caller} has no option {', '.join(map(repr, wrong))}",
                why="; ".join(_nearest(name, known) for name in wrong),
                fix="the options are " + ", ".join(name for name in options() if name in known),
            )
        return cls(**given)

    @property
    def config(self) -> BackendConfig:
        """Return what backends are asked for."""
        return BackendConfig(self.memory, self.precision, self.power, self.fusing, self.winograd)

    @property
    def fixed(self) -> list[str]:
        """Return the options with a value that a saved network does not take."""
        usual = LoadOptions()
        return [n for n, each in options().items() if each.fixed and (getattr(self, n) or None) != _usual(usual, n)]


def _usual(usual: LoadOptions, name: str) -> object:
    return getattr(usual, name) or None


def options() -> dict[str, Option]:
    """Return what is said of each option of `LoadOptions`, by name."""
    return {each.name: each.metadata["option"] for each in fields(LoadOptions)}


def _nearest(name: str, known: Iterable[str]) -> str:
    if name in options():
        return f"{name!r} is an option of weft.load only"
    near = get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]!r}?" if near else f"none is like {name!r}"


def described(keywords: type) -> Callable[[F], F]:
    """Return a decorator: a function of `**options` gets their signature, with defaults, and a docstring of each."""

    def decorated(function: F) -> F:
        taken: list[Field[Any]] = [f for f in fields(LoadOptions) if f.name in keywords.__annotations__]
        own = [p for p in Signature.from_callable(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        named = [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=_spelled(keywords, f.name))
            for f in taken
        ]
        whole = Signature([*own, *named], return_annotation=function.__annotations__["return"])
        vars(function)["__signature__"] = whole
        texts = [f"    {f.name}: {f.metadata['option'].values}\n        {f.metadata['option'].doc}" for f in taken]
        function.__doc__ = "\n".join([function.__doc__ or "", "    Options:", "", *texts])
        return function

    return decorated


def _spelled(keywords: type, name: str) -> str:
    """Return the type of a keyword as it is written."""
    annotation = keywords.__annotations__[name]
    return str(getattr(annotation, "__forward_arg__", annotation))
