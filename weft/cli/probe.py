"""`weft probe`: what each GPU does in a time, by which kernels are chosen."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from weft.backends.gpu.tuning import rate_store
from weft.backends.gpu.tuning.probe import measure
from weft.cli.console import line, plain, table, working
from weft.cli.devices import gpus
from weft.cli.json_output import JsonOption, answer
from weft.cli.options import BackendOptionOption, BackendPathOption, GpusOption
from weft.kernels.rates import Rates

WORDS = {
    "products": ("products in fp32", "G/s", 1e-3),
    "item_products": ("products of one work-item", "G/s", 1e-3),
    "matrix_products": ("products on matrix units", "G/s", 1e-3),
    "shared_vectors": ("work-group memory, read", "GB/s", 16e-3),
    "cache_bytes": ("a small buffer, read", "GB/s", 1e-3),
    "half_bytes": ("a small buffer of halves, read", "GB/s", 1e-3),
    "memory_bytes": ("a large buffer, read", "GB/s", 1e-3),
    "upload_bytes": ("from the host", "GB/s", 1e-3),
    "download_bytes": ("to the host", "GB/s", 1e-3),
    "wait_us": ("a load that waits for one", "us", 1.0),
    "barrier_us": ("a barrier of 64 work-items", "us", 1.0),
    "launch_us": ("one more launch", "us", 1.0),
    "between_us": ("a launch that waits for one", "us", 1.0),
    "start_us": ("a submission of one launch", "us", 1.0),
}
"""What the rates are called, their units, and how many of these a rate of one is."""


def probe(
    device: GpusOption = "all",
    backend_path: BackendPathOption = None,
    backend_option: BackendOptionOption = None,
    as_json: JsonOption = None,
) -> None:
    """Measure what GPU devices do in a time, even those measured before, and keep it: kernels are chosen by it.

    Weft measures a new device by itself, while it is idle (WEFT_MEASURE). Measure again on a quiet machine if something
    else kept the device busy then. Sessions that are open, in other processes too, keep their kernels.
    """
    found: list[dict[str, Any]] = []
    for choice, creator, options in gpus(device, backend_option):
        with creator.held(choice.index, options) as runtime, working(f"measuring {choice.device}"):
            begun, info = time.perf_counter(), runtime.device.info
            rates = measure(runtime)
            assert rates is not None, "nothing stops it"
            rate_store.keep(info, rates)
            facts = {"device": choice.device, "name": info.name, "driver": info.driver}
            found.append({**facts, "seconds": round(time.perf_counter() - begun, 3), "rates": rates.as_dict()})
    answer(as_json, lambda: {"measured": found}, lambda: _print(found))


def _print(found: Sequence[Mapping[str, Any]]) -> None:
    rows = [(each["device"], *words) for each in found for words in told_rates(Rates.from_dict(each["rates"]))]
    table(("device", "what", "measured"), rows)
    for each in found:
        line(plain(f"{each['device']} {each['name']}, {each['driver']}: measured in {each['seconds']:.1f} s"))


def told_rates(rates: Rates, names: Collection[str] = WORDS.keys()) -> list[tuple[str, str]]:
    """Return what was measured, or some of it, in words and units."""
    held = rates.as_dict()
    return [
        (words, f"{held[name] * scale:,.4g} {unit}")
        for name, (words, unit, scale) in WORDS.items()
        if name in held and name in names
    ]
