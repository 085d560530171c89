"""Weft runs neural networks on any device with OpenCL or Vulkan, or on the CPU.

    session = weft.load("model.onnx", device="vulkan")
    y, = session.run(x)
"""

from __future__ import annotations

from weft.backends.cpu.backend import CpuCreator
from weft.backends.opencl.creator import OpenCLCreator
from weft.backends.vulkan.creator import VulkanCreator
from weft.core.backend import (
    API_VERSION,
    Backend,
    BackendConfig,
    BackendCreator,
    BackendInfo,
    BackendOption,
    DeviceInfo,
    Execution,
    ForwardType,
    MemoryMode,
    Power,
    Precision,
    StorageType,
)
from weft.core.contexts import BackendContext, MemoryManager
from weft.core.debug import DebugRecord
from weft.core.dtypes import DType
from weft.core.graph import Graph, Node
from weft.core.layout import Layout
from weft.core.limits import Limits
from weft.core.op import Op, register_op
from weft.core.optimized import OptimizedNetwork, PreCompiled
from weft.core.profile import Profile
from weft.core.registry import insertExtraBackendCreator, registry
from weft.core.report import Report
from weft.core.runtime import Runtime
from weft.core.session import Session
from weft.core.tensor import Tensor, TensorSpec
from weft.core.views import OptimizationViews, SubgraphView
from weft.errors import WeftError
from weft.frontends.builder import Network, parse
from weft.loading import devices, load, optimize
from weft.plugins import PluginFinder as _PluginFinder

__version__ = "0.1.0"

__all__ = [
    "API_VERSION",
    "Backend",
    "BackendConfig",
    "BackendContext",
    "BackendCreator",
    "BackendInfo",
    "BackendOption",
    "DType",
    "DebugRecord",
    "DeviceInfo",
    "Execution",
    "ForwardType",
    "Graph",
    "Layout",
    "Limits",
    "MemoryManager",
    "MemoryMode",
    "Network",
    "Node",
    "Op",
    "OptimizationViews",
    "OptimizedNetwork",
    "Power",
    "PreCompiled",
    "Precision",
    "Profile",
    "Report",
    "Runtime",
    "Session",
    "StorageType",
    "SubgraphView",
    "Tensor",
    "TensorSpec",
    "WeftError",
    "devices",
    "insertExtraBackendCreator",
    "load",
    "optimize",
    "parse",
    "register_op",
    "registry",
]

for _creator in (CpuCreator(), OpenCLCreator(), VulkanCreator()):
    registry.insert(_creator.id, _creator, origin="weft")
registry.finder = _PluginFinder()
