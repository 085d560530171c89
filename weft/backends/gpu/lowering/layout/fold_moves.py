"""Let moved values lie where they come from or where they go, so that no kernel need move them.

A move (transpose, slice, expand, split ...) is an index map. If each reader of its output can read through the map, the
output is a view of the input. Else, if the map is a permutation and whatever makes the input can write through it, the
input is a view of the output. So are the inputs of a concat. Maps of several moves are composed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_inputs, base_op
from weft.core.contract.lowered import ValueView, root_of
from weft.core.graph.described import described
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Node
from weft.core.graph.index_map import IDENTITY, IndexMap
from weft.core.graph.layout import PACK, Layout, Shape, to_rows
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.passes.moves import order_of
from weft.kernels.gpu_op import GpuOp, find_gpu_op

T = TypeVar("T")
PACKED = (Layout.NC4HW4, Layout.NHWC4)
MOST_ELEMENTS = 1 << 30
"""Kernels compute places with 32 bits: sums of digits times steps must stay far below."""
MOST_MOVES = 3
"""Exporters write no more moves between a value and a Concat of its parts: one that takes them, and reshapes."""


@dataclass(frozen=True)
class FoldedMoves:
    """A graph with final layouts, where its values lie, and the nodes that need not run: nothing is left to move."""

    graph: Graph
    views: Mapping[str, ValueView]
    free: frozenset[str] = frozenset()
    apart: Mapping[str, str] = field(default_factory=dict)
    """By the name of a node that moves or joins values, why it still does: a clause about its output and its input."""


def fold_moves(graph: Graph, views: Mapping[str, ValueView], is_custom: IsCustom) -> FoldedMoves:
    """Return the views, and more views for moved values; the layouts of the graph are assigned.

    Packed images that are made of rows of channels, or converted only to be read as such, become NHWC4, whatever the
    device prefers: these are their bytes.
    """
    return _Folder(graph, dict(views), is_custom).run()


_Joined = tuple[Sequence[Tensor], Sequence[Tensor], Sequence[IndexMap]]
_NOT_JOINED: _Joined = ((), (), ())


@dataclass(frozen=True)
class _Move:
    """A node whose outputs are elements of `source`; `maps` say which."""

    source: str
    maps: Sequence[IndexMap]


class _Folder:
    def __init__(self, graph: Graph, views: dict[str, ValueView], is_custom: IsCustom) -> None:
        self.graph, self.views, self.is_custom = graph.copy(), views, is_custom
        self.inside: dict[str, set[str]] = {}
        """The values that lie in a root, by its name."""
        for name, view in views.items():
            self.inside.setdefault(view.root, set()).add(name)
        self.results = set(graph.outputs)
        self.makers = graph.producers()
        self.reads: dict[str, list[tuple[Node, int]]] = {}
        for node in graph.nodes:
            for position, name in enumerate(node.inputs):
                if name:
                    self.reads.setdefault(name, []).append((node, position))
        self.moves: dict[str, _Move] = {}
        conversions = [node for node in graph.nodes if node.op.type == "Relayout"]
        self._find_moves(node for node in graph.nodes if node.op.type != "Relayout")
        unpacked: dict[str, list[Node]] = {}
        for node in conversions:
            if self.graph.layouts.get(node.inputs[0], Layout.NCHW).packed and self._is_linear(node.outputs[0]):
                unpacked.setdefault(root_of(self.views, node.inputs[0]), []).append(node)
        for root, nodes in unpacked.items():
            self._unpack_in_place(root, nodes)
        self._find_moves(conversions)
        self.free: set[str] = set()
        self.apart: dict[str, str] = {}

    def run(self) -> FoldedMoves:
        for position, node in enumerate(self.graph.nodes):
            if self._pack_in_place(node):
                self.graph.nodes[position] = replace(node, op=replace(node.op, layout=Layout.NHWC4))  # type: ignore[call-arg]
            if node.name not in self.moves and (joint := self._joint(node)) is not None:
                self.moves[node.name] = joint
            if node.name in self.moves:
                self._read_in_place(node)
        for node in reversed(self.graph.nodes):
            if node.name in self.moves:
                self._write_in_place(node)
            else:
                self._join_in_place(node)
        return FoldedMoves(self.graph, self.views, frozenset(self.free), self.apart)

    def _find_moves(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if (maps := self._maps(node)) is not None:
                self.moves[node.name] = _Move(node.inputs[0], maps)

    # -- what nodes can do -------------------------------------------------------------------------------

    def _form(self, op: Op) -> GpuOp | None:
        return None if self.is_custom(op) else find_gpu_op(op)

    def _maps(self, node: Node) -> Sequence[IndexMap] | None:
        """Return of each output of a move where its elements lie in the first input; None for any other node."""
        form = self._form(node.op)
        outputs = [o for o in node.outputs if o]
        if form is None or type(node.op) is Fused or len(outputs) != len(node.outputs):
            return None
        if node.op.type == "Relayout":
            found = self._unpacked(node)
        elif not form.moves_bits or not all(map(self._is_linear, (node.inputs[0], *outputs))):
            return None
        else:
            found = form.moved_from(node.op, *described(self.graph, node))
        return found if found is not None and len(found) == len(outputs) else None

    def _unpacked(self, node: Node) -> Sequence[IndexMap] | None:
        """Return where the elements of an NCHW value lie in the packed one that it is made of."""
        return self._unpacked_from(node, self.graph.layouts.get(node.inputs[0], Layout.NCHW))

    def _unpacked_from(self, node: Node, layout: Layout) -> Sequence[IndexMap] | None:
        """Return where the elements of an NCHW value lie in the one that it is made of, if that has a layout."""
        source, target = node.inputs[0], node.outputs[0]
        spec = self.graph.specs[source]
        if not layout.packed or not self._is_linear(target) or spec.dtype is not self.graph.specs[target].dtype:
            return None
        if len(spec.dims) < 2 or spec.dims[1] % PACK or 0 in spec.dims or source in self.graph.constants:
            return None
        n, c, *rest = spec.dims
        view, places = self.views.get(source, ValueView(source)), prod(rest)
        blocks = view.blocks or c // PACK
        block, pixel = (1, blocks) if layout is Layout.NHWC4 else (places, 1)
        steps = (PACK * blocks * places, PACK * block, 1, PACK * pixel)
        return [IndexMap.by_steps((n, c // PACK, PACK, places), steps, PACK * view.first * block)]

    def _joint(self, node: Node) -> _Move | None:
        """Return a concat of elements of one value, in a regular order, as a move of that value."""
        inputs, outputs, _ = self._joined(node)
        if not inputs:
            return None
        dims, whole = [t.shape for t in inputs], outputs[0].shape
        axis = next((a for a, size in enumerate(whole) if any(d[a] != size for d in dims)), None)
        if axis is None or 0 in whole:
            return None
        for parts_of in (self._moved_together, self._lying_together):
            source, maps = parts_of(node.inputs)
            steps = [places.steps(d) for places, d in zip(maps, dims, strict=False)]
            found = [each for each in steps if each is not None]
            places = joined_places(dims, found, axis) if len(found) == len(dims) else None
            if places is not None:
                return _Move(source, [places])
        return None

    def _moved_together(self, names: Sequence[str]) -> tuple[str, Sequence[IndexMap]]:
        """Return the nearest value that moves make all of these of, and where they are in it; ("", ()) if none is."""
        first, *others = ([source for source, _ in self._behind(name)] for name in names)
        nearest = next((each for each in first if all(each in sources for sources in others)), "")
        return nearest, [self._taken_from(each, nearest) for each in names if nearest]

    def _lying_together(self, names: Sequence[str]) -> tuple[str, Sequence[IndexMap]]:
        """Return the value in which all of these lie, and where; ("", ()) if none is."""
        views = [view for name in names if (view := self.views.get(name)) is not None and not view.blocks]
        if len(views) != len(names) or len({view.root for view in views}) > 1:
            return "", ()
        return views[0].root, [view.places for view in views]

    def _taken_from(self, name: str, source: str) -> IndexMap:
        """Return where a value is in one that moves make it of."""
        at, count = IDENTITY, prod(self.graph.specs[name].dims)
        for made_of, places in self._behind(name):
            at = at.then(places).of_first(count)
            if made_of == source:
                break
        return at

    def _behind(self, name: str) -> Iterator[tuple[str, IndexMap]]:
        """Iterate over the moves that make a value, the last first: what each moves, and where its output is in it."""
        for _ in range(MOST_MOVES):
            maker = self.makers.get(name)
            move = None if maker is None else self.moves.get(maker.name)
            if maker is None or move is None or not self._is_linear(move.source):
                break
            yield move.source, move.maps[maker.outputs.index(name)]
            name = move.source

    def _is_linear(self, name: str) -> bool:
        layout = self.graph.layouts.get(name, Layout.NCHW)
        return layout is Layout.NCHW or len(self.graph.specs[name].dims) < 2

    def _takes(self, node: Node, position: int, name: str, places: IndexMap) -> bool:
        """Tell whether a node can read (or with position -1, write) a value whose elements lie so."""
        form = self._form(node.op)
        if form is None or prod(self.graph.specs[name].dims) >= MOST_ELEMENTS:
            return False
        if places.is_identity or not self._is_linear(name):
            return places.is_identity
        if position < 0 and len([o for o in node.outputs if o]) != 1 and type(node.op) is not Fused:
            return False  # the results of a fused node are stored one like the other
        if position >= len(base_inputs(node.op, node.inputs)):
            position = -1  # what a fused step reads is loaded as the output is stored
        if position < 0 and form.stores_by_place and self._reads_beside(node):
            return False
        constant = [i in self.graph.constants for i in node.inputs]
        return form.takes_place(base_op(node.op), position, self.graph.specs[name].dims, places, constant)

    def _reads_beside(self, node: Node) -> bool:
        """Tell whether the steps of a node read more than numbers and what it makes."""
        beside = node.inputs[len(base_inputs(node.op, node.inputs)) :]
        return any(i and self.graph.specs[i].size > 1 for i in beside)

    def _why_not_read(self, name: str, places: IndexMap) -> str:
        """Return what keeps a value, or one that lies in it, from being read at these places; "" if nothing does."""
        if name in self.results:
            return f"{name!r} is a result of this part of the network"
        for node, at in self._reads(name):
            if node.name not in self.moves and not self._takes(node, at, name, places):
                return f"{base_op(node.op).type} {node.name!r} does not read {name!r} through {places}"
        inside = (self._why_not_read(each, self.views[each].places.then(places)) for each in self._in(name))
        return next(filter(None, inside), "")

    def _reads(self, name: str) -> Iterator[tuple[Node, int]]:
        """Iterate over the nodes that read a value itself, and the position of that input."""
        for node, position in self.reads.get(name, ()):
            if not (node.name in self.moves and all(self._lies_in(o, name) for o in node.outputs)):
                yield node, position

    def _in(self, root: str) -> list[str]:
        return sorted(self.inside.get(root, ()))

    def _lies_in(self, name: str, other: str) -> bool:
        """Tell whether two values lie in the same memory."""
        return root_of(self.views, name) == root_of(self.views, other)

    # -- views -------------------------------------------------------------------------------------------

    def _read_in_place(self, node: Node) -> None:
        """Let outputs of a move lie in its input, where all their readers can read them there."""
        move = self.moves[node.name]
        if move.source in self.graph.constants:
            return
        view = self.views.get(move.source, ValueView(move.source))
        unpacked = node.op.type == "Relayout"
        if view.blocks and not unpacked:
            self.apart[node.name] = f"{move.source!r} is a part of the channels of {view.root!r}"
            return
        before = IDENTITY if unpacked else view.places
        placed = 0
        for name, places in zip(node.outputs, move.maps, strict=True):
            whole = places.then(before).of_first(prod(self.graph.specs[name].dims))
            if name in self.views:
                continue
            if reason := self._why_not_read(name, whole):
                self.apart.setdefault(node.name, reason)
                continue
            self._place(name, view.root, whole)
            placed += 1
        if placed == len(node.outputs):
            self.free.add(node.name)

    def _unpack_in_place(self, root: str, conversions: Sequence[Node]) -> None:
        """Store an image with its channels last if it, or parts of its channels, are converted only to be read so.

        Either readers want rows of channels, which are its bytes then; or more of them, behind moves or not, can read
        it where it lies.
        """
        held = [root, *self._in(root)]
        makers = [self.makers[name] for name in held if name in self.makers]
        if root in self.views or len(makers) < len(held) or any(self.is_custom(maker.op) for maker in makers):
            return
        if any(self.graph.layouts.get(name) is not Layout.NC4HW4 for name in held):
            return
        if any(self.graph.specs[node.inputs[0]].dims[1] % PACK for node in conversions):
            return
        if all(self._wants_rows(node) for node in conversions) or self._gains_by_rows(conversions):
            self.graph.layouts |= dict.fromkeys(held, Layout.NHWC4)

    def _wants_rows(self, node: Node) -> bool:
        """Tell whether all that read a converted image move its channels to the end."""
        order = to_rows(len(self.graph.specs[node.outputs[0]].dims))
        readers = [each for each, _ in self.reads.get(node.outputs[0], ())]
        return bool(readers) and all(order_of(self.graph, each) == order for each in readers)

    def _gains_by_rows(self, conversions: Sequence[Node]) -> bool:
        """Tell whether converted images are read in place if channels are last, by more readers than otherwise."""
        gains = False
        for node in conversions:
            (target, *_), blocks, rows = node.outputs, *(self._unpacked_from(node, each) for each in PACKED)
            if target in self.results or not blocks or not rows or self._why_not_read(target, rows[0]):
                return False
            pairs = list(zip(self._taken(target, blocks[0]), self._taken(target, rows[0]), strict=True))
            if any(before and not after for before, after in pairs):
                return False
            gains |= any(after and not before for before, after in pairs)
        return gains

    def _taken(self, name: str, places: IndexMap) -> Iterator[bool]:
        """Yield whether each reader of a value, moved or not, can read it at these places, in a fixed order."""
        for node, at in self._reads(name):
            move = self.moves.get(node.name)
            if move is None:
                yield self._takes(node, at, name, places)
            elif move.source == name:
                for moved, maps in zip(node.outputs, move.maps, strict=True):
                    whole = maps.then(places).of_first(prod(self.graph.specs[moved].dims))
                    yield from self._taken(moved, whole)
        for each in self._in(name):
            yield from self._taken(each, self.views[each].places.then(places))

    def _pack_in_place(self, node: Node) -> bool:
        """Let a packed image be the rows of channels that it is made of: these are its bytes, channels last.

        Of some channels of each row it is blocks of them. If it is made of something else, that is written there as
        rows, as long as vectors of four stay together. Tell whether it can.
        """
        source, target = node.inputs[0] if node.inputs else "", node.outputs[0]
        view = self.views.get(source, ValueView(source))
        if node.op.type != "Relayout" or view.blocks or target in self.views:
            return False
        spec = self.graph.specs[source]
        if not self.graph.layouts.get(target, Layout.NCHW).packed or spec.dtype is not self.graph.specs[target].dtype:
            return False
        if not self._is_linear(source) or not self._is_linear(view.root) or len(spec.dims) < 3 or 0 in spec.dims:
            return False
        n, c, *rest = spec.dims
        places = prod(rest)
        rows = IndexMap.by_steps((n, c, places), (c * places, 1, c))
        whole = self.graph.specs[view.root]
        if c % PACK or whole.size != spec.size:
            blocks = _blocks_of_rows(view, spec.dims, whole.dims) if c % PACK == 0 and not self._in(target) else None
            if blocks is None:
                return False
            self.views[target] = blocks
            self.inside.setdefault(view.root, set()).add(target)
        elif source in self.views and view.places == rows:
            self._place(target, view.root, IDENTITY)
        else:
            back = view.places.inverse()
            if back is None or not back.then(rows).keeps_together(PACK) or self._put(source, target, rows):
                return False
        self.graph.layouts[target] = Layout.NHWC4
        self.free.add(node.name)
        return True

    def _write_in_place(self, node: Node) -> None:
        """Let the input of a move lie in its output, if the output must lie as it does."""
        move = self.moves[node.name]
        target, source = node.outputs[0], move.source
        if len(node.outputs) > 1 or node.name in self.free or node.op.type == "Relayout":
            return
        if root_of(self.views, target) == root_of(self.views, source):
            return
        back = move.maps[0].inverse()
        if back is None or self.graph.specs[target].size != self.graph.specs[source].size:
            self._note(node, f"not all of {source!r} is in {target!r}")
        elif reason := self._put(source, target, back):
            self._note(node, reason)
        else:
            self.free.add(node.name)

    def _join_in_place(self, node: Node) -> None:
        """Let the inputs of a concat lie in its output."""
        for name, places in zip(node.inputs, self._joined(node)[2], strict=False):
            twice = f"{name!r} is in it twice" if node.inputs.count(name) > 1 else ""
            if reason := twice or self._put(name, node.outputs[0], places):
                self.apart.setdefault(node.name, reason)

    def _note(self, node: Node, reason: str) -> None:
        """Add why the input of a move does not lie in its output to why its output does not lie in its input."""
        before = self.apart.get(node.name)
        self.apart[node.name] = f"{before}; and {reason}" if before else reason

    def _joined(self, node: Node) -> _Joined:
        """Return the inputs and outputs of a node that joins linear values, and the maps; none of any other."""
        form = self._form(node.op)
        if form is None or not form.moves_bits or type(node.op) is Fused:
            return _NOT_JOINED
        if "" in node.inputs or not all(map(self._is_linear, (*node.inputs, *node.outputs))):
            return _NOT_JOINED
        inputs, outputs = described(self.graph, node)
        maps = form.joined_at(node.op, inputs, outputs)
        return _NOT_JOINED if maps is None else ([t for t in inputs if t is not None], outputs, maps)

    def _put(self, source: str, target: str, places: IndexMap) -> str:
        """Let a value lie in `target`, `places` saying where, if whatever makes and reads it can reach it there.

        Return what keeps it from that, or "".
        """
        outer = self.views.get(target, ValueView(target))
        inner = self.views.get(source, ValueView(source))
        root, maker = inner.root, self.makers.get(inner.root)
        if maker is None:
            kind = "a constant" if root in self.graph.constants else "an input of this part of the network"
            return f"{root!r} is {kind}"
        if root in self.results:
            return f"{root!r} is a result of this part of the network"
        if root in self.views or outer.root == root:
            return (
                f"{root!r} lies in {self.views[root].root!r} already"
                if root in self.views
                else "they are one value"
            )
        if outer.blocks or inner.blocks or not self._is_linear(root):
            return f"{root!r} lies in blocks of channels"
        if any(self.views[each].blocks for each in self._in(root)):
            return f"blocks of its channels are read as an image, as {root!r} has them"
        whole = inner.places.inverse()
        if whole is None or self.graph.specs[root].size != self.graph.specs[source].size:
            return f"{source!r} is not all of {root!r}"
        whole = whole.then(places).then(outer.places)
        if not (maker.name in self.moves or self._takes(maker, -1, root, whole)):
            return f"{base_op(maker.op).type} {maker.name!r} does not write {root!r} through {whole}"
        if reason := self._why_not_read(root, whole):
            return reason
        self._place(root, outer.root, whole)
        return ""

    def _place(self, name: str, root: str, places: IndexMap) -> None:
        """Let a value lie in a root, and with it what lies in the value."""
        for each in self._in(name):
            inside = self.views[each].places.then(places).of_first(prod(self.graph.specs[each].dims))
            self.views[each] = ValueView(root, places=inside)
        self.views[name] = ValueView(root, places=places)
        self.inside.setdefault(root, set()).update((name, *self.inside.pop(name, ())))


def _blocks_of_rows(view: ValueView, dims: Shape, whole: Shape) -> ValueView | None:
    """Return an image of these dims as blocks of the channels of rows, if it lies so in a value; else None.

    The value has a shape of its own, `whole`, of which the last axis is the channels.
    """
    n, c, *rest = dims
    places, channels = prod(rest), whole[-1] if whole else 0
    found = view.places.steps(dims)
    if found is None or channels % PACK or prod(whole) != n * places * channels:
        return None
    first = found[1]
    rows = IndexMap.by_steps((n, c, places), (channels * places, 1, channels), first)
    fits = view.places == rows and first % PACK == 0 and first + c <= channels
    return ValueView(view.root, first // PACK, channels // PACK) if fits else None


def joined_places(
    dims: Sequence[Shape], parts: Sequence[tuple[tuple[int, ...], int]], axis: int
) -> IndexMap | None:
    """Return where the elements of a concat lie, whose inputs are the steps and first places of parts of one value.

    They may be one after the other, or the end of an axis before its beginning, or of one size at places that are
    evenly spaced in one or two directions. None if they are nothing of that kind.
    """
    size = sum(d[axis] for d in dims)
    shape = (*dims[0][:axis], size, *dims[0][axis + 1 :])
    steps = tuple(max((s[a] for s, _ in parts), key=abs) for a in range(len(shape)))
    if any(s[a] != steps[a] for d, (s, _) in zip(dims, parts, strict=True) for a in range(len(shape)) if d[a] > 1):
        return None
    first = [at for _, at in parts]
    ends = [at + d[axis] * steps[axis] for d, at in zip(dims, first, strict=True)]
    if steps[axis] and first[1:] == ends[:-1]:
        return IndexMap.by_steps(shape, steps, first[0])
    if steps[axis] and len(parts) == 2 and first[0] == ends[1]:
        shifts = tuple(dims[1][a] if a == axis else 0 for a in range(len(shape)))
        return IndexMap.by_steps(shape, steps, first[1], shifts)
    if len({d[axis] for d in dims}) != 1:
        return None
    for inner in (len(parts), 2):
        outer = len(parts) // inner
        near, far = first[1] - first[0], first[inner] - first[0] if outer > 1 else 0
        if first == [first[0] + p * far + q * near for p in range(outer) for q in range(inner)]:
            sizes = (*shape[:axis], outer, inner, dims[0][axis], *shape[axis + 1 :])
            return IndexMap.by_steps(sizes, (*steps[:axis], far, near, *steps[axis:]), first[0])
    return None
