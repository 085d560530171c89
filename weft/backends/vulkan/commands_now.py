"""Commands that run once, at once: recorded into one command buffer, submitted and waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.backends.vulkan._vk import NULL, Arena, check, lib, vk
from weft.backends.vulkan.context import Context
from weft.core.contract.error_context import is_error


class CommandsNow:
    """A command buffer that is used again and again; the owner lets one thread at a time use it.

    `failed` says in errors what could not be done.
    """

    def __init__(self, context: Context, failed: str) -> None:
        self._context, self._failed = context, failed
        self._arena = Arena()
        self._pool = context.command_pool(vk.VK_COMMAND_POOL_CREATE_TRANSIENT_BIT)
        self._commands = context.command_buffer(self._pool)
        self._running = False
        self._fence = context.fence()
        self._fences = self._arena.array("VkFence", [self._fence])
        self._begin = self._arena.new(
            "VkCommandBufferBeginInfo", flags=vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        )
        self._info = self._arena.new("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=[self._commands])

    def run(self, record: Callable[[Any], None]) -> None:
        """Run what `record` puts into the command buffer, and wait for it."""
        self.wait()
        context = self._context
        check(lib.vkResetCommandPool(context.device, self._pool, 0), self._failed)
        check(lib.vkBeginCommandBuffer(self._commands, self._begin), self._failed)
        record(self._commands)
        check(lib.vkEndCommandBuffer(self._commands), self._failed)
        try:
            context.submit((self._info,), self._fence, self._fences)
            self._running = True
        except BaseException as e:
            if not is_error(e):  # such as Ctrl-C, which leaves unknown whether it runs
                context.idle()
                self._running = False
            raise
        self.wait()

    def wait(self) -> None:
        """Wait for the last commands, if Ctrl-C interrupted the wait for them."""
        if self._running:
            self._context.wait(self._fence, self._fences)
            self._running = False

    def destroy(self) -> None:
        """Destroy the command buffer; it must not be running."""
        lib.vkDestroyFence(self._context.device, self._fence, NULL)
        lib.vkDestroyCommandPool(self._context.device, self._pool, NULL)
