"""The arguments and options that commands share, with their help; those of a load are made from `LoadOptions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.parsing import parse_backend_options, parse_hints, parse_limits, parse_state
from weft.core.contract.backend import Precision
from weft.core.registry.backend_registry import registry
from weft.core.session.load_options import LoadOptions, options
from weft.frontends import FRONT_ENDS, SAVED

_FILES = [f"{f.name} ({', '.join(filter(None, f.suffixes))})" for f in FRONT_ENDS if f.suffixes and not f.optimized]
MODEL_HELP = f"A model: a file of {' or '.join(_FILES)}, or of a front end that a package adds."
ModelArgument = Annotated[Path, typer.Argument(help=MODEL_HELP, show_default=False)]
RunnableArgument = Annotated[
    Path,
    typer.Argument(help=f"{MODEL_HELP} Or a network that `weft optimize` saved (*{SAVED}).", show_default=False),
]
def _search(folders: list[Path] | None) -> list[Path] | None:
    if folders:
        registry.rescan(folders)
    return folders


BackendPathOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--backend-path",
        help="A folder with backends, in place of those in WEFT_DYNAMIC_BACKEND_PATHS; may be repeated.",
        resolve_path=True,
        callback=_search,
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", help="NAME=FILE: a .npy array, or a picture that is resized to the input."),
]


OutputOption = Annotated[
    list[str] | None, typer.Option("--output", "-o", help="A folder for all outputs, or NAME=FILE.npy.")
]
IterationsOption = Annotated[int, typer.Option(min=1, help="Runs that are timed.")]
WarmupOption = Annotated[int, typer.Option(min=0, help="Runs before the timed ones.")]

TopOption = Annotated[int | None, typer.Option(min=1, help="Show this many of the best classes of each output.")]
LabelsOption = Annotated[Path | None, typer.Option(help="Names of the classes, one a line: `name` or `7,name`.")]
SoftmaxOption = Annotated[bool, typer.Option("--softmax", help="Turn scores into probabilities to show them.")]

MeanOption = Annotated[str, typer.Option(help="For pictures: what is subtracted from the channels, 0..255.")]
ScaleOption = Annotated[str, typer.Option(help="For pictures: the factor after --mean, such as 1/128.")]
BgrOption = Annotated[bool, typer.Option("--bgr", help="For pictures: blue first, as in OpenCV.")]


_OPEN, _ELSE = ". Without it, sizes that the model leaves open are", "of another input that names them, or else 1"
SHAPES = {
    "inputs": f"{_OPEN} those of its --input, or {_ELSE}.",
    "alone": f"{_OPEN} those {_ELSE}.",
    "needed": "; needed where the model leaves sizes open.",
}
"""How the help of `--shape` ends, by what gives the sizes that it leaves open."""
_PARSED: dict[str, Callable[[Any], object]] = {
    "backend_options": parse_backend_options,
    "fallback": lambda is_strict: "error" if is_strict else "cpu",
    "hints": parse_hints,
    "limits": parse_limits,
    "state": parse_state,
}
"""What the text of a flag means, where typer does not say it."""
Command = Callable[..., None]


def load_flags(*names: str, device: str = "auto", shapes: str = "inputs") -> Callable[[Command], Command]:
    """Return a decorator: a command gets flags for these options of a load, and their values as its `options`.

    The values are by the names of `LoadOptions`. `device` is the default of --device, and its value stays a text, as do
    those of --shape, whose help ends as `SHAPES` says. A command may show an option in another way: it leaves it out.
    """
    said, usual = options(), {f.name: f.default for f in fields(LoadOptions)} | {"device": device}

    def flag(name: str) -> Parameter:
        default, each = usual[name], said[name]
        kind: Any = type(default) if isinstance(default, (bool, str, Enum)) else list[str] | None
        if each.flags == ("--strict",):
            kind, default = bool, False
        elif name == "state":
            kind, default = list[str] | None, None
        elif name == "signature":
            kind = str | None
        told = each.help + (SHAPES[shapes] if name == "shapes" else "")
        annotation = Annotated[kind, typer.Option(*each.flags, help=told)]
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def decorated(command: Command) -> Command:
        own = signature(command, eval_str=True)
        parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "options"]
        whole = [*parameters, *map(flag, names)]

        def called(**given: Any) -> None:
            values = {name: given.pop(name) for name in names}
            read = {name: _PARSED[name](value) if name in _PARSED else value for name, value in values.items()}
            command(**given, options=read)

        called.__doc__, called.__name__ = command.__doc__, command.__name__
        called.__annotations__ = {p.name: p.annotation for p in whole}
        vars(called)["__signature__"] = Signature(whole)
        return called

    return decorated


def _flag_of(name: str) -> Any:
    each = options()[name]
    return typer.Option(*each.flags, help=each.help)


BackendOptionOption = Annotated[list[str] | None, _flag_of("backend_options")]
GpusOption = Annotated[
    str, typer.Option("--device", "-d", help='GPU devices with commas: "vulkan,opencl:1"; "all" is every one.')
]
PrecisionOption = Annotated[Precision, _flag_of("precision")]
ShapeOption = Annotated[
    list[str] | None, typer.Option(*options()["shapes"].flags, help=options()["shapes"].help + SHAPES["inputs"])
]
