"""All the faults: the modules that add to `FAULTS` are imported."""

from tests.conformance import answer_faults, large_faults, memory_faults, more_faults, run_faults  # noqa: F401  (add to FAULTS)
from tests.conformance.faults import FAULTS

__all__ = ["FAULTS"]
