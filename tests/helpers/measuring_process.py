"""A measurement in a process of its own, as `benchmarks.jobs` begins them: it prepares, waits for its turn, and writes.

The network "broken" fails while it prepares.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.jobs import begin

if __name__ == "__main__":
    (network,) = sys.argv[sys.argv.index("--networks") + 1].split(",")
    batch, path = int(sys.argv[sys.argv.index("--batch") + 1]), Path(sys.argv[sys.argv.index("--json") + 1])
    gpu = int(sys.argv[sys.argv.index("--gpu") + 1])
    if network == "broken":
        raise SystemExit(3)
    prepared = time.monotonic()
    begin()
    times = {"prepared": prepared, "began": time.monotonic(), "rest": sys.argv.count("--rest"), "gpu": gpu}
    row = {"network": network, "batch": batch, "who": "weft vulkan", "precision": "fp32", "more": times}
    path.write_text(json.dumps({"rows": [row], "absent": {}, "done": [f"{network} x{batch}"]}))
