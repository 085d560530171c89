"""The command `weft` as it is installed: an interrupt ends it quietly, also while its modules are imported.

It lies outside of the package because whatever is in it is imported after `import weft`, which takes time.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


def main() -> None:
    """Run the command line of this process and exit with its status."""
    try:
        from weft.cli import main as run  # only now: see above

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
