"""The device contract: `Backend`, `Execution`, and what configures and registers them.

A backend is one class per device type. It makes one `Execution` per node, owns the memory of its
tensors, and is called when a pipeline is resized and run. The camelCase names are the contract's own
(MNN's custom-backend interface); everything else is PEP 8. One pipeline makes its calls in this order:

    construct -> [onCreate per node] -> onResizeBegin
      -> per node: onAcquireBuffer(outputs), Execution.onResize, onReleaseBuffer(inputs without a later reader)
      -> onAllocateBuffer -> onResizeEnd
    per run: onExecuteBegin -> Execution.onExecute per node -> onExecuteEnd

A changed shape repeats the order from `onResizeBegin`, after `onClearBuffer`; before that, `onCreate` is called again
for executions that do not serve any shape. The `onExecute` of a `Recorded` execution does nothing, so runs skip it: a
part that is one recording makes as many calls for 10,000 nodes as for 10.

A `Pipeline` makes these calls, for any backend. What Weft's own devices do beyond them is in `Engine`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from weft.core.contract.backend_options import NO_OPTIONS, BackendOption, Options
from weft.core.contract.contexts import BackendContext, MemoryManager
from weft.core.contract.profile import ProfilingContext
from weft.core.contract.session_config import (
    BackendConfig,
    DeviceInfo,
    ForwardType,
    MemoryMode,
    Power,
    Precision,
    StorageType,
    Wait,
    not_granted,
)
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.errors import BackendError

__all__ = [
    "API_VERSION", "Backend", "BackendConfig", "BackendCreator", "BackendInfo", "BackendOption", "DeviceInfo",
    "Execution", "ExecutionCreator", "ExplainsRefusal", "ForwardType", "MemoryMode", "Power", "Precision",
    "StorageType", "Wait", "is_compatible",
]

API_VERSION = (1, 5)
"""(major, minor) of the interface in this file. A backend written for another major or a newer minor
cannot be used (A20). From the first release on, a change that breaks backends raises the major; an addition raises the
minor.

1.1 added options (`BackendCreator.options`, `BackendInfo.options`, `BackendContext.options`) and
`BackendInfo.forward_type`.

1.2 added `BackendInfo.same_nodes`.

1.3 added `DeviceInfo.uuid` and `pci`, `BackendInfo.named`, `BackendCreator.hidden` and `Execution.any_constant`.

1.4 added `StorageType.STATE`, `Backend.keeps_state`, `BackendInfo.wait` and `BackendCreator.sooner`.

1.5 took from `Backend` what Weft's own devices alone had, such as `lower` and `onMapInput`; see `Engine`. A backend
that has such methods works, but nothing calls them."""


def is_compatible(backend: tuple[int, int], ours: tuple[int, int] = API_VERSION) -> bool:
    """Tell whether a backend written for version `backend` of the interface works with version `ours`."""
    return backend[0] == ours[0] and backend[1] <= ours[1]


class SameNodes:
    """Stands for nodes that several backend objects run, each for other sizes: a stage, by the number of its rows.

    A backend may keep under it, by a weak reference, what it learns of these nodes.
    """


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What a backend is constructed with: its id, the device's index, the configuration."""

    id: str
    index: int = 0
    config: BackendConfig = field(default_factory=BackendConfig)
    version: str = ""
    """The creator's version, or its `found_version`."""
    memory_manager: MemoryManager | None = None
    """What the creator's `create_memory_manager` returned for this network."""
    profiling: ProfilingContext | None = None
    """Where to report events and counters, if this session is profiled."""
    forward_type: ForwardType | None = None
    """The creator's forward type, if it has one."""
    options: Options = NO_OPTIONS
    """A value for each option that the creator declares: the user's, or the default."""
    kept_options: Options = NO_OPTIONS
    """The part of `options` that an optimised network keeps; see `BackendOption.saved`."""
    loads: bool = False
    """Whether a network is to be loaded on the object, so `lower` may prepare for it; not so in `weft.optimize`."""
    wait: Wait = Wait.ALL
    """For what the session's load waits: `lower` may raise TakesLong where that is not everything."""
    same_nodes: SameNodes | None = None
    """Shared by the objects that run the same nodes for other sizes; None if there are no others."""
    named: str = ""
    """The device's `DeviceInfo.identity`, if the user named it by its UUID or PCI address."""

    @property
    def device(self) -> str:
        """Return the device's name as a user writes it: "vulkan:1"."""
        return f"{self.id}:{self.index}"


class Execution(ABC):
    """One node on one backend, for the shapes and types that `onCreate` saw.

    When they change, `onCreate` is called again, and its result replaces this execution, unless `any_shape` is set; so
    it is when a constant input has another value, unless `any_constant` is set.
    """

    any_shape: bool = False
    """Whether it serves all shapes and layouts that the backend takes; then a resize only calls its `onResize`."""
    any_constant: bool = False
    """Whether it serves any values of constant inputs, of which `onResize` is to look which are other arrays."""

    def __init__(self, *arguments: Any) -> None:
        """Accept the arguments of creators, (inputs, outputs, op, backend), for classes that need none of them."""
        return None

    def onResize(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Prepare for these shapes: choose kernels, acquire scratch, upload constants; nothing by default.

        The tensors' memory may only be planned yet: addresses are final after `onResizeEnd`.
        """
        return None

    @abstractmethod
    def onExecute(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Run, or enqueue. Compile, allocate and decide nothing here."""

    def close(self) -> None:
        """Free the STATIC memory that the execution acquired; nothing by default."""
        return None


class Recorded(Execution):
    """A node whose `onResize` puts its work into a recording, which the backend's `onExecuteEnd` starts.

    If a subclass or an object overrides `onExecute` by the end of the resize, every run calls it in its turn, like any
    other execution.
    """

    def onExecute(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Do nothing; runs skip this call."""

    @staticmethod
    def is_called(execution: Execution) -> bool:
        """Tell whether runs call an execution; they skip an `onExecute` that does nothing."""
        return getattr(execution.onExecute, "__func__", None) is not Recorded.onExecute


class ExecutionCreator(Protocol):
    """Makes the executions of one op type on one backend class; `Backend.addCreator` registers it."""

    def onCreate(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Any, backend: Any
    ) -> Execution | None:
        """Return an execution, or None if this backend does not take the op with these shapes and types."""
        ...


@runtime_checkable
class ExplainsRefusal(Protocol):
    """A creator that can say why it refuses a node, before anything is created."""

    def why_not(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Any, backend: Any
    ) -> str | None:
        """Return the reason as a sentence, or None if the node is supported."""
        ...


CreatorT = TypeVar("CreatorT")


class _FromCallable:
    """A creator made from an Execution class or a function (the decorator form of `addCreator`)."""

    def __init__(self, make: Callable[..., Execution | None]) -> None:
        self._make = make
        if hasattr(make, "why_not"):
            self.why_not: Callable[..., Any] = make.why_not

    def onCreate(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Any, backend: Any
    ) -> Execution | None:
        """Call the decorated class or function."""
        return self._make(inputs, outputs, op, backend)


class Backend(ABC):
    """A device as one pipeline sees it; subclass it to add one.

    A subclass implements the abstract callbacks below, and `onCreate` unless it has creators; instantiating it
    names those that are missing. Add ops with `addCreator` or the decorator `creator`, beside the op's class:

        @AcmeBackend.creator("Relu")
        class Relu(Execution):
            def __init__(self, inputs, outputs, op, backend): ...
    """

    version: ClassVar[str] = ""
    """The backend's own version, for a class that is registered without a creator."""
    options: ClassVar[Sequence[BackendOption]] = ()
    """What a user may set, for a class that is registered without a creator; see `BackendCreator.options`."""
    api_version: ClassVar[tuple[int, int] | None] = None
    """The interface version that it was written for, for a class that is registered without a creator."""
    host_memory: ClassVar[bool] = False
    """Whether tensors of this backend are numpy arrays in the storage shape, which the host reads directly."""
    copies_constants: ClassVar[bool] = True
    """Whether Weft puts constant inputs into this backend's STATIC memory before `onCreate`. If False, executions take
    what they need from `Tensor.constant`; with `host_memory`, the model's own arrays, read-only, are their memory."""
    takes_open_sizes: ClassVar[bool] = False
    """Whether `why_not` and `OptimizeSubgraph` compute with each size as it comes: as an int, or a `SymbolicInt` that
    stands for many. Then they are asked once for all sizes, and not at each resize. A subclass does not inherit it."""
    keeps_state: ClassVar[bool] = False
    """Whether networks may read and write STATE memory, which lives from run to run and from shape to shape.

    An object that runs nothing owns it: it acquires it by `onAcquireBuffer(tensor, StorageType.STATE)`, fills and reads
    it by `onCopyBuffer`, and frees it by `onReleaseBuffer`. Other objects of the device run with it: an input of their
    part, and the output that lies in it (`Graph.aliases`), both come to `onImportBuffer` with the same source. So they
    are one memory, and the node between them, a `WritingOp`, need only write what is new. A subclass does not inherit
    it."""
    _creators: ClassVar[dict[str, ExecutionCreator]] = {}
    _inherited: ClassVar[Sequence[Mapping[str, ExecutionCreator]]] = (_creators,)
    """The class's own creators and those of its bases, in the order of their precedence."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._creators = {}
        cls._inherited = tuple(base.__dict__["_creators"] for base in cls.__mro__ if "_creators" in base.__dict__)

    def __new__(cls, *args: Any, **kwargs: Any) -> Backend:
        """Refuse to instantiate an incomplete class."""
        missing = missing_callbacks(cls)
        if missing:
            raise BackendError(
                f"{cls.__name__} cannot be used as a backend",
                where=f"{cls.__module__}.{cls.__qualname__}",
                why=f"it does not implement {', '.join(missing)}",
                fix="implement them, or add creators in place of onCreate; weft.Backend says what each must do",
            )
        return super().__new__(cls)

    def __init__(self, info: BackendInfo) -> None:
        self.info = info

    # -- ops -------------------------------------------------------------------------------------------

    @classmethod
    def addCreator(cls, op_type: str, creator: ExecutionCreator, *, replace: bool = False) -> None:
        """Register the creator of executions for `op_type`; BackendError for a second one unless `replace`."""
        held = cls._creators.get(op_type)
        if held is not None and not replace:
            raise BackendError(
                f"{cls.__name__} already has a creator for {op_type!r}",
                why=f"it is {held!r}",
                fix="pass replace=True to take its place",
            )
        cls._creators[op_type] = creator

    @classmethod
    def creator(cls, op_type: str, *, replace: bool = False) -> Callable[[CreatorT], CreatorT]:
        """Return the decorator form of `addCreator`, for a creator, an Execution class or a function.

        Classes and functions are called with (inputs, outputs, op, backend). A class may have a static
        `why_not(inputs, outputs, op, backend)` that returns the reason for refusing a node.
        """

        def register(what: CreatorT) -> CreatorT:
            made: Any = what
            if isinstance(what, type) and not issubclass(what, Execution):
                made = what()
            elif callable(what) and not hasattr(what, "onCreate"):
                made = _FromCallable(what)
            cls.addCreator(op_type, made, replace=replace)
            return what

        return register

    @classmethod
    def find_creator(cls, op_type: str) -> ExecutionCreator | None:
        """Return the creator for an op type, the class's own or an inherited one."""
        for held in cls._inherited:  # a resize asks hundreds of times: a generator would take thrice as long
            if op_type in held:
                return held[op_type]
        return None

    def why_not(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        """Return why this backend does not take the node, as a sentence, or None if it does."""
        creator = self.find_creator(op.type)
        if creator is None:
            decides_later = type(self).onCreate is not Backend.onCreate
            return None if decides_later else f"{self.info.id} has no implementation of {op.type}"
        if isinstance(creator, ExplainsRefusal):
            return creator.why_not(inputs, outputs, op, self)
        return None

    def why_not_optimized(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        """Return why this backend does not run a node of an already optimised network, or None if it does.

        Loading a saved network asks this of each node as `OptimizeSubgraph` left it, because a file may say anything.
        By default this calls `why_not`. Only `onCreate` decides about ops that only optimisers make
        (`Op.from_optimizing`).
        """
        return None if op.from_optimizing else self.why_not(inputs, outputs, op)

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        """Return what this backend makes of a part of the network; by default all of it stays untouched.

        Called while a network is optimised, on a backend object that is closed afterwards. The nodes must
        own what is made here (see `PreCompiled`), never the backend object.
        """
        return OptimizationViews().keep_rest(view)

    def canImport(self, source: Backend) -> bool:
        """Tell whether this backend's tensors can use the memory of `source`'s tensors without a copy."""
        return False

    # -- the contract's callbacks ------------------------------------------------------------------------

    def onCreate(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> Execution | None:
        """Return the execution of a node, or None if this backend does not take it after all.

        Called before the first resize. Before later resizes, it is called for nodes whose op, constants, shapes or
        layouts changed, unless their execution serves `any_shape`.
        """
        creator = self.find_creator(op.type)
        return creator.onCreate(inputs, outputs, op, self) if creator else None

    @abstractmethod
    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Give the tensor memory, or record that it needs some; False if there is none."""

    @abstractmethod
    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Release the tensor's memory according to its storage type."""

    @abstractmethod
    def onClearBuffer(self) -> bool:
        """Free all DYNAMIC and DYNAMIC_SEPERATE memory."""

    @abstractmethod
    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        """Copy between two tensors of this backend, or between one of them and a host tensor.

        It converts layout and element type where they differ. A copy to the host waits for the device.
        """

    @abstractmethod
    def onExecuteBegin(self) -> None:
        """Begin one run of the pipeline."""

    @abstractmethod
    def onExecuteEnd(self) -> None:
        """End one run: submit its work; the device may still be working on return."""

    def onResizeBegin(self) -> None:
        """Begin a resize: until `onAllocateBuffer`, acquires and releases may be only recorded."""
        return None

    def onResizeEnd(self) -> None:
        """End a resize: all memory has its place, and the plan is final.

        To report a failure, raise an error, or return a sentence, False or a nonzero error code.
        """
        return None

    def onAllocateBuffer(self) -> bool:
        """Allocate what was recorded; called after the last acquire of a resize."""
        return True

    def onWaitFinish(self) -> bool:
        """Wait until the device is done; raise its errors here at the latest."""
        return True

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        """Let the input `tensor` use the memory of `source`; called instead of an acquire, after `canImport`.

        The source's memory stays unchanged until the source's next run. If the source is STATE memory, so may the
        output that lies there (`keeps_state`), and then runs change it.
        """
        return False

    def statistics(self) -> Mapping[str, int]:
        """Return the backend's own counters (bytes, kernels, launches ...) for the report."""
        return {}

    def notes(self) -> Sequence[str]:
        """Return which parts of the configuration this backend does not grant, as sentences for the report."""
        return not_granted(self.info.config)

    def close(self) -> None:
        """Free what is left of this pipeline, including STATIC memory; the device stays open for others.

        Nothing by default: a pipeline calls `onClearBuffer` first.
        """
        return None


def missing_callbacks(kind: type[Backend]) -> list[str]:
    """Return the callbacks that every backend implements and a class does not."""
    found = sorted(getattr(kind, "__abstractmethods__", ()))
    if kind.onCreate is Backend.onCreate and not any(b.__dict__.get("_creators") for b in kind.__mro__):
        found.append("onCreate")
    return found


class BackendCreator(ABC):
    """Makes backends of one kind, and says beforehand whether their hardware is present."""

    id: str = ""
    forward_type: ForwardType | None = None
    version: str = ""
    """The backend's own version; Weft refuses an optimised network that another version saved."""
    found_version: str = ""
    """Replaces an empty `version`; set by the finder of the backend: "file 3fa9..." or "acme-weft 1.2"."""
    api_version: tuple[int, int] | None = None
    """The version of Weft's backend interface that it was written for (`API_VERSION` at that time); None: this one."""
    options: Sequence[BackendOption] = ()
    """What a user may set with `backend_options={id: {name: value}}`; `BackendInfo.options` holds the values."""
    auto_rank: int | None = None
    """AUTO considers only backends with a rank, the lowest first, and takes the first with real hardware."""

    @abstractmethod
    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a backend for one pipeline on the device `info.index`."""

    def sooner(self, options: Options) -> Options:
        """Return options with which a part runs sooner than with these, which a session uses until it is ready."""
        return options

    def onPrepare(self, index: int) -> None:
        """Open what takes time, in a separate thread while a model is read; `onCreate` meets any error again.

        Not called if a user gives options, because it could not follow them.
        """
        return None

    def absent(self) -> str | None:
        """Return why no device of this kind can run here, as a sentence, or None if one can.

        A `weft.extend.Reason` gives what to do about it apart, which `weft doctor` lists.
        """
        return None

    def devices(self) -> list[DeviceInfo]:
        """Return the devices of this kind, in the order of their indices."""
        return [] if self.absent() else [DeviceInfo(self.id, 0, self.id)]

    def hidden(self) -> list[str]:
        """Return which devices the user hides from this process, and how, a sentence each; `devices` lists none."""
        return []

    def unusable(self, index: int) -> str | None:
        """Return why nothing can run on a listed device and what to do about it, or None if it works.

        Called when the device is about to be chosen or listed; the first call may take a while. Such a device is shown
        as unusable, and skipped in lists of devices; AUTO never picks it.
        """
        return None

    def create_context(self) -> BackendContext | None:
        """Return the object that a runtime tells about loads and unloads; None by default.

        Called once a runtime, and once for each other set of options that networks are loaded with. Weft sets
        `BackendContext.options` before the first notice.
        """
        return None

    def create_memory_manager(self, index: int) -> MemoryManager | None:
        """Return the owner of one network's memory on device `index`; called once a network. None by default.

        Backends find it in `BackendInfo.memory_manager`. Its `acquire` is called before the first run.
        """
        return None

    def held_bytes(self) -> Mapping[int, int]:
        """Return the bytes that networks and buffers hold on devices, by their indices; none that is not counted."""
        return {}

    def close(self) -> None:
        """Close the devices that are still open; called when the last registry that held this creator drops it.

        At the end of the process it is called too, if a device was opened, after all sessions are closed, unless a
        thread is still working.
        """
        return None
