"""The arguments and options that commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.core.contract.backend import Precision
from weft.core.registry.backend_registry import registry
from weft.frontends import FRONT_ENDS, SAVED

_FILES = [f"{f.name} ({', '.join(filter(None, f.suffixes))})" for f in FRONT_ENDS if f.suffixes and not f.optimized]
MODEL_HELP = f"A model: a file of {' or '.join(_FILES)}, or of a front end that a package adds."
ModelArgument = Annotated[Path, typer.Argument(help=MODEL_HELP, show_default=False)]
RunnableArgument = Annotated[
    Path,
    typer.Argument(help=f"{MODEL_HELP} Or a network that `weft optimize` saved (*{SAVED}).", show_default=False),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        help='Devices to run on in turn, with commas: "vulkan,cpu". "vulkan+opencl" is one run, in which OpenCL takes '
        'the nodes that Vulkan refuses. "all" is every device found.',
    ),
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
BackendOptionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--backend-option",
        help="An option of a backend, BACKEND.NAME=VALUE, as `weft devices --options` lists them; may be repeated.",
    ),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="What the model may cost before it runs, NAME=NUMBER: nodes, constant_bytes, folding_bytes or "
        "folding_seconds; may be repeated.",
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", help="NAME=FILE: a .npy array, or a picture that is resized to the input."),
]


_SHAPE = "The shape of an input, NAME=1,3,224,224, or the size of a dimension that the model names, NAME=2"


def _shape(otherwise: str) -> Any:
    return typer.Option("--shape", help=f"{_SHAPE}{otherwise}.")


_OPEN = ". Without it, sizes that the model leaves open are"
_ELSE = "of another input that names them, or else 1"
ShapeOption = Annotated[list[str] | None, _shape(f"{_OPEN} those of its --input, or {_ELSE}")]
OnlyShapeOption = Annotated[list[str] | None, _shape(f"{_OPEN} those {_ELSE}")]
NeededShapeOption = Annotated[list[str] | None, _shape("; needed where the model leaves sizes open")]
HintOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hint", help='The device of a node, NAME=DEVICE; NAME may be a pattern, "head/*=cpu". May be repeated.'
    ),
]
PrecisionOption = Annotated[Precision, typer.Option(help="low stores fp16; sums are fp32 everywhere.")]
FusingOption = Annotated[
    bool, typer.Option("--fusing/--no-fusing", help="Let devices compute several nodes in one kernel.")
]
WinogradOption = Annotated[
    bool, typer.Option("--winograd/--no-winograd", help="Let large convolutions be computed by Winograd's method.")
]
OverflowCheckOption = Annotated[
    bool,
    typer.Option(
        "--overflow-check/--no-overflow-check",
        help="At precision low, compute in float32 what the first run finds beyond float16, and repeat that run.",
    ),
]
OutputOption = Annotated[
    list[str] | None, typer.Option("--output", "-o", help="A folder for all outputs, or NAME=FILE.npy.")
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Refuse a network that a device cannot run whole; else the CPU takes the rest."),
]

IterationsOption = Annotated[int, typer.Option(min=1, help="Runs that are timed.")]
WarmupOption = Annotated[int, typer.Option(min=0, help="Runs before the timed ones.")]

TopOption = Annotated[
    int | None, typer.Option(min=1, help="Show this many of the best classes of each output.")
]
LabelsOption = Annotated[
    Path | None, typer.Option(help="Names of the classes, one a line: `name` or `7,name`.")
]
SoftmaxOption = Annotated[
    bool, typer.Option("--softmax", help="Turn scores into probabilities to show them.")
]

MeanOption = Annotated[str, typer.Option(help="For pictures: what is subtracted from the channels, 0..255.")]
ScaleOption = Annotated[
    str, typer.Option(help="For pictures: the factor after --mean, such as 1/128.")
]
BgrOption = Annotated[bool, typer.Option("--bgr", help="For pictures: blue first, as in OpenCV.")]
