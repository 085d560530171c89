"""The installed command `weft`: Ctrl-C ends it quietly, even while its modules are being imported.

It is outside the package because a module inside is imported only after `import weft`, which takes time.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit status that shells use after Ctrl-C."""


def main() -> None:
    """Run the command line of this process and exit with its status."""
    try:
        from weft.cli import main as run  # late, so that an interrupt of the import is caught too

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
