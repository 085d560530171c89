"""All the faults: the modules that add to `FAULTS` are imported."""

from tests.helpers.faults import answers, convolutions, memory, reuse, runs, sizes, tensors  # noqa: F401  (add to FAULTS)
from tests.helpers.faults.listing import FAULTS

__all__ = ["FAULTS"]
