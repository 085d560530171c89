"""Commands that run once, at once: recorded into one command buffer, submitted and waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.backends.vulkan._vk import NULL, check, lib, vk
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.submission import Submission


class CommandsNow(Submission):
    """A command buffer that is used again and again; the owner lets one thread at a time use it.

    `failed` says in errors what could not be done.
    """

    def __init__(self, context: Context, failed: str) -> None:
        super().__init__(context)
        self._failed = failed
        self._pool = context.command_pool(vk.VK_COMMAND_POOL_CREATE_TRANSIENT_BIT)
        self._commands = context.command_buffer(self._pool)
        self._begin = self._arena.new(
            "VkCommandBufferBeginInfo", flags=vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        )
        self.take([self._commands])

    def run(self, record: Callable[[Any], None]) -> None:
        """Run what `record` puts into the command buffer, and wait for it."""
        self.wait()
        check(lib.vkResetCommandPool(self._context.device, self._pool, 0), self._failed)
        check(lib.vkBeginCommandBuffer(self._commands, self._begin), self._failed)
        record(self._commands)
        check(lib.vkEndCommandBuffer(self._commands), self._failed)
        self.start()
        self.wait()

    def wait(self) -> None:
        """Wait for the last commands, if Ctrl-C interrupted the wait for them."""
        if self.pending:
            self.wait_for()

    def destroy(self) -> None:
        """Destroy the command buffer; it must not be running."""
        super().destroy()
        lib.vkDestroyCommandPool(self._context.device, self._pool, NULL)
