"""Weft runs neural networks on any device with OpenCL or Vulkan, or on the CPU.

    session = weft.load("model.onnx", device="vulkan")
    y, = session.run(x)
"""

from __future__ import annotations

from weft.backends.cpu.backend import CpuCreator
from weft.backends.opencl.creator import OpenCLCreator
from weft.backends.ort.creator import OrtCreator
from weft.backends.vulkan.creator import VulkanCreator
from weft.buffers import DeviceUse, array, empty, from_dlpack, memory
from weft.core.buffers.buffer import Buffer
from weft.core.contract.backend import (
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
from weft.core.contract.contexts import BackendContext, MemoryManager
from weft.core.contract.profile import Profile
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Layout
from weft.core.graph.limits import Limits
from weft.core.graph.op import Op, register_op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.placement.debug_nodes import DebugRecord
from weft.core.placement.optimized_network import OptimizedNetwork, PreCompiled
from weft.core.registry.backend_registry import insertExtraBackendCreator, registry
from weft.core.registry.front_ends import front_ends as _front_ends
from weft.core.session.load_options import LoadOptions
from weft.core.session.report import Report, Transfers
from weft.core.session.runtime import Runtime
from weft.core.session.session import Session
from weft.errors import WeftError
from weft.frontends import FRONT_ENDS as _FRONT_ENDS
from weft.frontends.builder import Network, parse
from weft.loading import devices, load, optimize
from weft.plugins import PackagedFrontEnds as _PackagedFrontEnds
from weft.plugins import PluginFinder as _PluginFinder
from weft.serving.own_device import own_device
from weft.serving.pool import Pool
from weft.serving.predictor import Predictor

__version__ = "0.1.0"

__all__ = [
    "API_VERSION",
    "Backend",
    "BackendConfig",
    "BackendContext",
    "BackendCreator",
    "BackendInfo",
    "BackendOption",
    "Buffer",
    "DType",
    "DebugRecord",
    "DeviceInfo",
    "DeviceUse",
    "Execution",
    "ForwardType",
    "Graph",
    "Layout",
    "Limits",
    "LoadOptions",
    "MemoryManager",
    "MemoryMode",
    "Network",
    "Node",
    "Op",
    "OptimizationViews",
    "OptimizedNetwork",
    "Pool",
    "Power",
    "PreCompiled",
    "Precision",
    "Predictor",
    "Profile",
    "Report",
    "Runtime",
    "Session",
    "StorageType",
    "SubgraphView",
    "Tensor",
    "TensorSpec",
    "Transfers",
    "WeftError",
    "array",
    "devices",
    "empty",
    "from_dlpack",
    "insertExtraBackendCreator",
    "load",
    "memory",
    "optimize",
    "own_device",
    "parse",
    "register_op",
    "registry",
]

for _creator in (CpuCreator(), OpenCLCreator(), VulkanCreator(), OrtCreator()):
    registry.insert(_creator.id, _creator, origin="weft")
registry.finder = _PluginFinder()
for _front_end in _FRONT_ENDS:
    _front_ends.insert(_front_end, origin="weft")
_front_ends.finder = _PackagedFrontEnds()
