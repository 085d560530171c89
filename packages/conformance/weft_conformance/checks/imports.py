"""Inputs that use the memory of another backend object's tensors, where the backend says that it can (A8)."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.graph.graph import infer_shapes
from weft.core.graph.interpreter import outputs as expected
from weft.core.registry.backend_registry import registry
from weft_conformance.checks.optimizing import optimized
from weft_conformance.drive import Drive, read
from weft_conformance.kit import Kit, Untried, check
from weft_conformance.report import Finding


@check("imports", "A8", "an input that uses the memory of another object sees what that object computed, in every run")
def imports(kit: Kit) -> Iterable[Finding]:
    """Let one object read what another, of this device or of the CPU, has computed."""
    for name in dict.fromkeys((kit.device, "cpu:0")):
        yield kit.attempt(f"memory of {name}", _imported, kit, name)


def _imported(kit: Kit, name: str) -> str:
    first, then = infer_shapes(kit.blocks.chain(2)), infer_shapes(kit.blocks.chain(3))
    (other,) = registry.choose(name)
    with Drive(other.open(kit.config), optimized(kit, first, other)) as source:
        with kit.opened() as asked:
            if not asked.canImport(source.backend):
                raise Untried(f"{kit.device} does not use the memory of {name}: values are copied")
        imported = {then.inputs[0]: source.tensor(source.outputs[0])}
        with Drive(kit.choice.open(kit.config), optimized(kit, then), imported) as target:
            for seed in range(3):
                fed = kit.blocks.feeds(seed)
                source.run(fed)
                (between,) = expected(first, fed)
                shared = source.tensor(source.outputs[0])
                before = read(source.backend, shared).copy()
                problem = kit.compare(then, {"x": between}, target.run({}))
                if problem:
                    return f"run {seed + 1}: {problem}"
                if read(source.backend, shared).tobytes() != before.tobytes():
                    return f"run {seed + 1}: the memory that was imported was written to"
    return ""
