"""From a graph of torch.fx, of ATen's overloads, to a graph of Weft."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.host.dlpack import NotShared, shared
from weft.errors import ModelError, Problem, UnsupportedOps, WeftError
from weft.frontends.torch.builder import Builder, Value
from weft.frontends.torch.rules import Unsupported, table

if TYPE_CHECKING:
    import torch
    from torch.fx import Node


def name_of(target: object) -> str:
    """Return the name of an op in the table: "aten.relu.default"; of Python's arithmetic with sizes "sym.mul"."""
    if hasattr(target, "_schema"):
        return str(target)
    name = getattr(target, "__name__", str(target))
    return f"sym.{name}.default"


def dtype_of(dtype: Any) -> DType:
    """Return the element type of torch's."""
    return DType.of(str(dtype).removeprefix("torch."))


def array_of(tensor: torch.Tensor, name: str) -> Array:
    """Return the memory of a tensor on the CPU as an array; ModelError for others."""
    try:
        return shared(tensor)
    except NotShared as e:
        raise ModelError(
            f"the tensor {name!r} cannot be a constant of the network",
            why=f"it is a {type(tensor).__name__} {e}",
            fix="move the model to the CPU, model.cpu(), before it is exported or compiled",
        ) from e


def described(meta: Any) -> list[Value]:
    """Return element type and shape of each result that torch tells of a node; none for one that has no result."""
    if isinstance(meta, (list, tuple)):
        return [value for each in meta for value in (described(each) or [Value("", DType.FLOAT32, ())])]
    if hasattr(meta, "dtype") and hasattr(meta, "shape"):
        return [Value("", dtype_of(meta.dtype), tuple(d if isinstance(d, int) else None for d in meta.shape))]
    if isinstance(meta, bool) or type(meta).__name__ == "SymBool":
        return [Value("", DType.BOOL, ())]
    if isinstance(meta, float) or type(meta).__name__ == "SymFloat":
        return [Value("", DType.FLOAT32, ())]
    return [] if meta is None else [Value("", DType.INT64, ())]


def _place(node: Node) -> str:
    """Return the path of the module whose forward a node is of, "layer1.0.conv"; "" for the model itself."""
    stack = [str(place[0]) for place in (node.meta.get("nn_module_stack") or {}).values()]
    path = stack[-1] if stack and not stack[-1].startswith("_empty_nn_module_stack") else ""
    for before, after in (("L['self'].", ""), ("L['self']", ""), ("L['fn'].", ""), ("[", "."), ("]", "")):
        path = path.replace(before, after)
    return path.replace("'", "").replace("_modules.", "").strip(".")


@dataclass
class Translation:
    """Makes a graph of Weft of the nodes of a graph of torch; what it cannot translate is in `problems`."""

    name: str
    builder: Builder = field(init=False)
    refused: dict[Node, Problem] = field(default_factory=dict)
    """The nodes for which there is no form, each with the reason."""
    values: dict[Node, Any] = field(default_factory=dict)
    """What stands for each node: a value, a list of them, or a number."""
    types: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.builder = Builder(self.name)

    def add(self, nodes: Sequence[Node], attributes: Callable[[str], Any]) -> None:
        """Translate nodes in order; placeholders are in `values` already, and `attributes` finds constant tensors."""
        for node in nodes:
            if node in self.values or node.op == "output":
                continue
            if node.op == "get_attr":
                held = attributes(str(node.target))
                if not hasattr(held, "dtype"):
                    self.refuse(node, "it is a graph that another op runs")
                    continue
                self.values[node] = self.builder.constant(array_of(held, str(node.target)), node.name)
            elif node.op == "call_function":
                self._call(node)
            else:
                self.refuse(node, f"it is a {node.op}, and no call of an op")

    def _call(self, node: Node) -> None:
        args, kwargs = self._given(node.args), self._given(node.kwargs)
        if node.target is operator.getitem:
            self.values[node] = self._item(node, args[0], args[1])
            return
        name = name_of(node.target)
        rule = table().get(name)
        if rule is None:
            self.refuse(node, _why_unknown(name))
            return
        path = _place(node)
        label = f"{path}/{node.name}" if path else node.name
        outs = described(node.meta.get("val"))
        before = len(self.builder.graph.nodes)
        self.builder.begin(label, node.name, outs)
        try:
            made = rule(self.builder, *_arguments(node.target, args, kwargs))
        except Unsupported as e:
            del self.builder.graph.nodes[before:]
            self.refuse(node, str(e))
        except WeftError as e:
            self.refuse(node, e.short)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError) as e:
            self.refuse(node, f"its arguments are of a kind that is not known ({type(e).__name__}: {e})")
        else:
            other = _other(made, outs)
            if other:
                del self.builder.graph.nodes[before:]
                self.refuse(node, other)
            else:
                self.values[node] = made

    def _item(self, node: Node, whole: Any, place: int) -> Any:
        if isinstance(whole, list) and place < len(whole):
            return whole[place]
        if node.users:
            self.refuse(node, "it reads a result that Weft does not make")
        return self._stand_in(node)

    def _stand_in(self, node: Node) -> Any:
        made = described(node.meta.get("val"))
        made = [Value(f"{node.name}?{k}", v.dtype, v.shape) for k, v in enumerate(made)]
        is_many = isinstance(node.meta.get("val"), (list, tuple))
        return made if is_many or not made else made[0]

    def refuse(self, node: Node, reason: str) -> None:
        """Note that there is no form for a node, and let something stand in for it."""
        name = name_of(node.target) if node.op == "call_function" else str(node.target)
        path = _place(node)
        self.refused[node] = Problem(f"{path}/{node.name}" if path else node.name, f": {name}: {reason}")
        self.types[name] += 1
        self.values[node] = self._stand_in(node)

    def _given(self, given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [self._given(each) for each in given]
        if isinstance(given, dict):
            return {key: self._given(each) for key, each in given.items()}
        return self.values[given] if type(given).__name__ == "Node" else given

    def raise_refused(self, total: int) -> None:
        """Raise UnsupportedOps with all nodes that were refused, if there are any."""
        if self.refused:
            raise UnsupportedOps(
                f"{len(self.refused)} of the {total} nodes of {self.name} are not supported",
                [*self.refused.values()],
                fix='let PyTorch run these nodes, torch.compile(model, backend="weft"), or change them in the model',
                by_op=self.types,
            )


def _other(made: Any, outs: Sequence[Value]) -> str:
    """Return in what results differ from those that torch tells of; "" if they do not, as far as sizes are known."""
    for value, out in zip(made if isinstance(made, list) else [made], outs, strict=False):
        if not isinstance(value, Value):
            continue
        pairs = zip(value.shape, out.shape, strict=False)
        fits = value.rank == out.rank and all(a == b or None in (a, b) for a, b in pairs)
        if not fits or value.dtype is not out.dtype:
            mine, its = (f"{v.dtype.value}{list(v.shape)}" for v in (value, out))
            return f"Weft's form of it would be {mine}, and not {its}"
    return ""


def _why_unknown(name: str) -> str:
    return "Weft has no form of it" if not name.startswith("sym.") else "it is no op of tensors"


def _arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return all arguments of a call in the order of the schema, with the defaults of those that are left out."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return [*args]
    given = list(args)
    for formal in schema.arguments[len(given):]:
        given.append(kwargs.get(formal.name, formal.default_value))
    return given
