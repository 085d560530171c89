"""`weft.torch.compile`: a model that is exported once, and checks the shapes of a call in the place of guards."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from itertools import starmap
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as trees

from weft.core.session.session import Session
from weft.errors import ConfigError, InputError
from weft.frontends.torch.exported import Translated, translated, undecomposed
from weft.frontends.torch.translation import dtype_of
from weft.torch.kept_export import NoKey, find, keep, key_of
from weft.torch.options import Options
from weft.torch.runner import Runner, check_devices

CALLER = "weft.torch.compile"
log = logging.getLogger("weft.torch")


def compile(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    cache: str | os.PathLike[str] | None = None,
    **options: Any,
) -> CompiledModule:
    """Return a model that runs on Weft, exported once for an example: the `args` and `kwargs` of a call.

    `dynamic_shapes` are those of `torch.export.export`: which sizes of the example are open. `options` are those of
    `weft.load`, and `buffers`, see `weft.torch.write_back`. UnsupportedOps, with all nodes, for a model with ops that
    Weft lacks: `torch.compile(model, backend="weft")` leaves these to PyTorch.

    `cache` is a file that keeps the export, without weights. A later start with the same code, model and example, as
    far as `weft.torch.kept_export` sees it, reads it in the place of an export.
    """
    given = Options.of(options, CALLER)
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"{CALLER} takes a torch.nn.Module", why=f"it was given a {type(model).__name__}",
                          fix='use torch.compile(function, backend="weft") for functions')
    if model.training:
        raise ConfigError(
            "Weft runs finished networks, and this model is in training mode", where=CALLER,
            why="layers such as dropout and batch norms compute other things there", fix="call model.eval() first",
        )
    check_devices([*model.parameters(), *model.buffers(), *trees.tree_leaves((args, kwargs))], CALLER)
    example = (tuple(args), dict(kwargs or {}))
    key, path = "", None if cache is None else Path(cache)
    if path is not None:
        try:
            key = key_of(model, example, dynamic_shapes)
        except NoKey as e:
            log.warning("the export is not kept in %s: %s", path, e)
            path = None
        else:
            kept = find(path, key)
            if kept is not None:
                return CompiledModule(model, *kept, given)
    with torch.no_grad():
        program = undecomposed(torch.export.export(model, *example, dynamic_shapes=dynamic_shapes))
        made = translated(program, frozen=False)
    calls = program.call_spec
    if path is not None:
        keep(path, key, made, calls.in_spec, calls.out_spec)
    return CompiledModule(model, made, calls.in_spec, calls.out_spec, given)


class CompiledModule:
    """A model that runs on Weft. It is called as the model is; results have no gradients.

    Weights are on the device once. If one was changed since the last call, all are sent again; buffers that the model
    changes are changed in the model. `session` has the report. Close it, or drop it, to free the device.
    """

    def __init__(
        self, model: torch.nn.Module, made: Translated, in_tree: Any, out_tree: Any, options: Options
    ) -> None:
        self._made = made
        names = {name: target for target, name in made.weights.items()}
        written = {*made.changed.values()}
        self._runner = Runner(made.graph, [n for n in names if n not in written], options, made.changed)
        self._weights = _Slots.of(model, [names[n] for n in self._runner.weights])
        self._buffers = _Slots.of(model, [names[n] for n in self._runner.inputs if n in names])
        self._tree, self._results = in_tree, out_tree
        self._plain = len(made.given) if _is_plain(self._tree) else -1
        self._single = made.results[0][0] == "output" and self._results.is_leaf() if made.results else False
        specs = made.graph.specs
        self._forms = [(name, specs[name]) for name, _ in made.given if name is not None]
        order = {name: k for k, (name, _) in enumerate(self._forms)}
        self._order = [order.get(name, -1) for name in self._runner.inputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns; InputError for other tensors than the example was like."""
        given = self._given(args, kwargs)
        self._check(given)
        buffers = iter(self._buffers.tensors())
        tensors = [given[k] if k >= 0 else next(buffers) for k in self._order]
        results = self._runner.run(self._weights.tensors(), tensors)
        if self._single:
            return results[0]
        listed = [results[which] if kind == "output" else which for kind, which in self._made.results]
        return trees.tree_unflatten(listed, self._results)

    @property
    def session(self) -> Session:
        """Return the session that runs the model with its weights as they are now."""
        return self._runner.session(self._weights.tensors())

    def close(self) -> None:
        """Free what is on the device; the next call loads it again."""
        self._runner.close()

    def __enter__(self) -> CompiledModule:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the tensors of a call in the order of the export."""
        if not kwargs and len(args) == self._plain:
            leaves: Sequence[Any] = args
        else:
            ordered = {name: kwargs[name] for name in self._tree.child(1).context if name in kwargs}
            leaves, tree = trees.tree_flatten((tuple(args), ordered | dict(kwargs)))
            if tree != self._tree:
                raise InputError("the call is not like the example",
                                 why=f"it is {tree}, and the example was {self._tree}",
                                 fix="call it as in the example, or compile it again")
        if len(self._forms) == len(leaves):
            return leaves
        kept = []
        for leaf, (name, value) in zip(leaves, self._made.given, strict=True):
            if name is not None:
                kept.append(leaf)
            elif leaf is not value and leaf != value:
                raise InputError(f"the call has {leaf!r} where the example had {value!r}",
                                 why="the exported model holds that value", fix="compile it again for other values")
        return kept

    def _check(self, given: Sequence[Any]) -> None:
        """Raise InputError for a tensor of another type or shape than the example."""
        for tensor, (name, spec) in zip(given, self._forms, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise InputError(f"{name!r} is a {type(tensor).__name__}", fix="pass a tensor, as in the example")
            shape = tensor.shape
            fits = len(shape) == len(spec.shape) and all(
                starmap(_fits, zip(shape, spec.shape, strict=True))
            )
            if not fits or _dtypes(tensor.dtype) is not spec.dtype or tensor.device.type != "cpu":
                check_devices([tensor], CALLER)
                raise InputError(
                    "the call is not like the example",
                    why=f"{name!r} is {_dtypes(tensor.dtype).value}{[*shape]}, and the example was {spec}",
                    fix="compile it with dynamic_shapes={...}, as torch.export.export takes them, for other sizes",
                )


def _fits(size: int, wanted: int | str) -> bool:
    return size == wanted or isinstance(wanted, str)


_known: dict[Any, Any] = {}


def _dtypes(dtype: Any) -> Any:
    found = _known.get(dtype)
    if found is None:
        found = _known[dtype] = dtype_of(dtype)
    return found


def _is_plain(tree: Any) -> bool:
    """Tell whether a call is a few tensors by position."""
    args, kwargs = tree.child(0), tree.child(1)
    return not kwargs.num_children and all(args.child(k).is_leaf() for k in range(args.num_children))


class _Slots:
    """Where a model holds its weights: a change of the tensor itself is seen, too."""

    def __init__(self, holders: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
        self._holders, self._names = holders, names

    @classmethod
    def of(cls, model: torch.nn.Module, targets: Sequence[str]) -> _Slots:
        """Return the places of parameters and buffers by their names."""
        holders, names = [], []
        for target in targets:
            path, _, name = target.rpartition(".")
            module = model.get_submodule(path)
            holders.append(module._parameters if name in module._parameters else module._buffers)
            names.append(name)
        return cls(holders, names)

    def tensors(self) -> list[Any]:
        """Return the tensors that are there now."""
        return [*map(getitem, self._holders, self._names)]

