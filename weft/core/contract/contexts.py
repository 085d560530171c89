"""What a backend may give a runtime besides `Backend` objects: a context, a memory manager, its own timings."""

from __future__ import annotations

from abc import ABC, abstractmethod

from weft.core.contract.backend_options import NO_OPTIONS, Options


class BackendContext:
    """Is told when a network that uses the backend comes and goes (A10); lives as long as the runtime.

    Override what you need. Returning False refuses: the load or the unload stops with an error that names the
    backend; after an unload it says that cleaning up failed. True and None are a yes. A load that fails
    or is refused is followed by the two unload notices, to every context that was told of it.
    """

    options: Options = NO_OPTIONS
    """The options of the networks that it is told of, a value for each that the creator declares; Weft sets it."""

    def before_load(self, network: int) -> bool:
        """Hear that a network is about to be loaded; return False to refuse it."""
        return True

    def after_load(self, network: int) -> bool:
        """Hear that a network was loaded; return False to refuse it."""
        return True

    def before_unload(self, network: int) -> bool:
        """Hear that a network is about to be unloaded; return False to keep it."""
        return True

    def after_unload(self, network: int) -> bool:
        """Hear that a network is gone; return False to say that cleaning up failed."""
        return True


class MemoryManager(ABC):
    """A backend's own memory for one loaded network (A11)."""

    @abstractmethod
    def acquire(self) -> None:
        """Get the memory; called once, before the network's first run."""

    @abstractmethod
    def release(self) -> None:
        """Give the memory back; called once, when the network is unloaded."""
