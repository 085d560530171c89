"""All the faults: the modules that add to `FAULTS` are imported."""

from tests.helpers.faults import (  # noqa: F401  (add to FAULTS)
    answers,
    convolutions,
    drivers,
    memory,
    reuse,
    runs,
    sizes,
    state,
    tensors,
)
from tests.helpers.faults.listing import FAULTS

__all__ = ["FAULTS"]
