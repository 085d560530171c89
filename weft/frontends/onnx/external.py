"""The entries of a tensor whose data lies in a file beside the model; `files_beside` says which files may be read."""

from __future__ import annotations

from onnx import TensorProto

from weft.core.graph.layout import Array
from weft.frontends.files_beside import FilesBeside, refusal
from weft.frontends.wording import quote

LONGEST_NUMBER = 19


class ExternalFiles(FilesBeside):
    """The external files of one model, each mapped once."""

    def view(self, tensor: TensorProto, nbytes: int) -> Array:
        """Return the `nbytes` of an external tensor as a read-only uint8 array in the mapped file."""
        where = f"tensor {quote(tensor.name)}"
        entries = _entries(tensor, where)
        location = entries.get("location", "")
        where += f", external file {quote(location)}"
        offset = _number(entries, "offset", where) or 0
        length = _number(entries, "length", where)
        if length is not None and length != nbytes:
            raise refusal(where, f"the entry says {length} bytes, its shape and element type say {nbytes}")
        return self.part(location, offset, nbytes, where)


def _entries(tensor: TensorProto, where: str) -> dict[str, str]:
    # A plain dictionary, so that a key out of the file never names an attribute or an argument.
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if not isinstance(entry.key, str) or not isinstance(entry.value, str):
            raise refusal(where, "an entry is not UTF-8 text")
        if entry.key in entries:
            raise refusal(where, f"the entry {quote(entry.key)} is there twice")
        entries[entry.key] = entry.value
    return entries


def _number(entries: dict[str, str], key: str, where: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise refusal(where, f"{key} {quote(text)} is not a number of bytes")
    return int(text)
