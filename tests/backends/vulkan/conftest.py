"""Fixtures of the tests of the Vulkan device: one that must leak nothing, a cache for each file, and Vulkan's rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.vulkan_kernels import NO_DIALECT
from weft.backends.vulkan.device import VulkanDevice, open_device, validation_messages


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_VULKAN_VALIDATION", "1")
        patch.setenv("WEFT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("WEFT_CACHE", raising=False)
        patch.delenv("WEFT_NO_COMPILER", raising=False)
        yield


@pytest.fixture(autouse=True)
def no_validation_messages(environment: None) -> Iterator[None]:
    yield
    said = list(validation_messages())
    validation_messages().clear()
    assert said == []


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    made = open_device(0, NO_DIALECT)
    yield made
    made.close()
    stats = made.stats
    assert (stats.live_buffers, stats.live_bytes, stats.live_recordings) == (0, 0, 0)
