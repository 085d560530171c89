"""What a backend may give a runtime besides `Backend` objects: a context, and a memory manager."""

from __future__ import annotations

from abc import ABC, abstractmethod

from weft.core.contract.backend_options import NO_OPTIONS, Options


class BackendContext:
    """Is told when a network that uses the backend is loaded and unloaded (A10); lives as long as the runtime.

    Override what you need. Returning False refuses: the load or unload stops with an error that names the
    backend; from `after_unload` it means that cleaning up failed. True and None agree. If a load fails
    or is refused, every context that was told of it gets the two unload notices.
    """

    options: Options = NO_OPTIONS
    """The options of the networks it is told of: a value for each option of the creator. Weft sets it."""

    def before_load(self, network: int) -> bool:
        """Return False to refuse a network that is about to be loaded."""
        return True

    def after_load(self, network: int) -> bool:
        """Return False to refuse a network that was just loaded."""
        return True

    def before_unload(self, network: int) -> bool:
        """Return False to keep a network that is about to be unloaded."""
        return True

    def after_unload(self, network: int) -> bool:
        """Clean up after a network that was unloaded; return False if that failed."""
        return True


class MemoryManager(ABC):
    """A backend's own memory for one loaded network (A11)."""

    @abstractmethod
    def acquire(self) -> None:
        """Get the memory; called once, before the network's first run."""

    @abstractmethod
    def release(self) -> None:
        """Give the memory back; called once, when the network is unloaded."""
