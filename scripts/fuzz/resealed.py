"""Checksums and seals for saved networks that were changed: what is behind these checks is looked at, too."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress

from weft.core.saved.archive import MANIFEST, array_name, blob_name
from weft.core.saved.network_file import Seals


def reseal(members: dict[str, bytes]) -> None:
    """Give the members of a changed file the checksums and seals of their content, where they have the form for it."""
    with suppress(TypeError, KeyError, IndexError, AttributeError, ValueError, RecursionError):
        manifest = json.loads(members[MANIFEST])
        for k, each in enumerate(manifest["arrays"]):
            if array_name(k) in members:
                each["crc"] = zlib.crc32(members[array_name(k)])
        for k, each in enumerate(manifest["bytes"]):
            if blob_name(k) in members:
                each[1] = zlib.crc32(members[blob_name(k)])
        if manifest.get("tail"):
            seals = Seals(manifest)
            for stage in manifest["tail"]["stages"]:
                stage["seal"] = seals.of(stage)
        members[MANIFEST] = json.dumps(manifest).encode("ascii", "surrogatepass")
