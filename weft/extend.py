"""What authors of devices, kernel languages, ops, passes and front ends work with, in one place.

`weft` itself has the classes that every extension subclasses (`Backend`, `BackendCreator`, `Execution`,
`Op`); this module has the parts to build them from. Importing it imports no driver.

    memory of a backend      BufferManager, Slot, ArenaPlan, convert, copy_tensor
    a backend on the host    HostBackend (tensors are numpy arrays), CpuBackend (which runs every op)
    a device with kernels    GpuDevice, GpuBackend, GpuCreator, DeviceCaps, the commands, KernelSource; a Dialect:
                             OpenCLDialect, GlslDialect, or your own
    an op on GPUs            GpuOp, gpu_op, KernelBuilder, WantedLayout, add_shader_folder
    a front end              FrontEnd, ReadOptions, register_front_end, front_ends (the registry)
    a rewrite of networks    graph_pass, Pass, PassGroup, PassContext, Property, SHAPES_INFERRED, Names, infer_node
    errors to raise          OutOfMemory, DeviceLost, CompileError, DeviceError, ExecutionError, ModelError;
                             kernel_refused makes the CompileError for a log and a source
    why a device is absent   Reason
"""

from __future__ import annotations

from weft.backends.cpu.backend import CpuBackend
from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import (
    BarrierCommand,
    Binding,
    Command,
    CopyCommand,
    DeviceStats,
    GpuBuffer,
    GpuDevice,
    LaunchCommand,
    MemoryKind,
)
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.contract.backend import API_VERSION, ExecutionCreator, ExplainsRefusal, is_compatible
from weft.core.contract.lowered import Launch, Lowered
from weft.core.contract.profile import ProfilingContext
from weft.core.contract.views import FailedPart, Substitution, subgraph
from weft.core.graph.graph import Names, infer_node
from weft.core.graph.layout import Array, Shape, convert, from_storage, storage_shape, to_storage
from weft.core.graph.op import Constants, OpClass
from weft.core.host.host_backend import HostBackend
from weft.core.host.tensor_copy import copy_tensor
from weft.core.memory.memory_plan import ArenaPlan, BufferManager, Slot
from weft.core.passes import Pass, PassContext, PassGroup, Property, graph_pass
from weft.core.passes.properties import SHAPES_INFERRED
from weft.core.placement.optimized_network import precompiled
from weft.core.registry.front_ends import FrontEnd, ReadOptions, front_ends, register_front_end
from weft.errors import (
    BackendError,
    ClosedError,
    CompileError,
    DeviceError,
    DeviceLost,
    ExecutionError,
    ModelError,
    NoDevice,
    OutOfMemory,
    Reason,
)
from weft.kernels.cache import DiskCache
from weft.kernels.dialect import Dialect, KernelParts, Shared, View
from weft.kernels.launch import DeviceCaps, GpuOp, KernelBuilder, WantedLayout, gpu_op
from weft.kernels.refused import kernel_refused
from weft.kernels.source import Arg, KernelSource
from weft.kernels.template import add_shader_folder

__all__ = [
    "API_VERSION",
    "SHAPES_INFERRED",
    "ArenaPlan",
    "Arg",
    "Array",
    "BackendError",
    "BarrierCommand",
    "Binding",
    "BufferManager",
    "ClosedError",
    "Command",
    "CompileError",
    "Constants",
    "CopyCommand",
    "CpuBackend",
    "DeviceCaps",
    "DeviceError",
    "DeviceLost",
    "DeviceStats",
    "Dialect",
    "DiskCache",
    "ExecutionCreator",
    "ExecutionError",
    "ExplainsRefusal",
    "FailedPart",
    "FrontEnd",
    "GlslDialect",
    "GpuBackend",
    "GpuBuffer",
    "GpuCreator",
    "GpuDevice",
    "GpuOp",
    "HostBackend",
    "KernelBuilder",
    "KernelParts",
    "KernelSource",
    "Launch",
    "LaunchCommand",
    "Lowered",
    "MemoryKind",
    "ModelError",
    "Names",
    "NoDevice",
    "OpClass",
    "OpenCLDialect",
    "OutOfMemory",
    "Pass",
    "PassContext",
    "PassGroup",
    "ProfilingContext",
    "Property",
    "ReadOptions",
    "Reason",
    "Shape",
    "Shared",
    "Slot",
    "Substitution",
    "View",
    "WantedLayout",
    "add_shader_folder",
    "convert",
    "copy_tensor",
    "from_storage",
    "front_ends",
    "gpu_op",
    "graph_pass",
    "infer_node",
    "is_compatible",
    "kernel_refused",
    "precompiled",
    "register_front_end",
    "storage_shape",
    "subgraph",
    "to_storage",
]
