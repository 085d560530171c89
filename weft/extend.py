"""What authors of devices, kernel languages, ops, passes and front ends work with, in one place.

`weft` itself has the classes that every extension subclasses (`Backend`, `BackendCreator`, `Execution`,
`Op`); this module has the parts to build them from. Importing it imports no driver.

    memory of a backend      BufferManager, Slot, ArenaPlan, convert, copy_tensor
    a backend on the host    HostBackend (tensors are numpy arrays), CpuBackend (which runs every op)
    a device with kernels    GpuDevice, GpuBackend, GpuCreator, DeviceCaps, the commands, KernelSource, DiskCache;
                             raw_device (pyopencl's)
    a kernel language        OpenCLDialect, GlslDialect, or your own Dialect, which makes KernelCode; View; and for bits
                             and coded numbers to_bits, from_bits, is_coded, cut_to_bits, extended, with_suffix
    an op on GPUs            GpuOp, gpu_op, KernelBuilder, WantedLayout, add_shader_folder; launch_move and
                             launch_expression, which need no template; Strides, row_major
    a front end              FrontEnd, ReadOptions, register_front_end, front_ends (the registry)
    an op of TFLite files    tflite_op, which registers a function of a TFLiteNode
    a rewrite of networks    graph_pass, Pass, PassGroup, PassContext, Property, SHAPES_INFERRED, Names, infer_node
    errors to raise          OutOfMemory, DeviceLost, CompileError, DeviceError, NoDevice, ExecutionError, ModelError;
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
from weft.backends.opencl.discovery import raw_device
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.contract.backend import API_VERSION, ExecutionCreator, ExplainsRefusal, is_compatible
from weft.core.contract.profile import Profiled, ProfilingContext
from weft.core.contract.views import FailedPart, Substitution, subgraph
from weft.core.graph.graph import Names, infer_node
from weft.core.graph.layout import Array, Shape, convert, from_storage, row_major, storage_shape, to_storage
from weft.core.graph.op import Constants, OpClass
from weft.core.host.disk_cache import DiskCache
from weft.core.host.host_backend import HostBackend
from weft.core.host.tensor_copy import copy_tensor
from weft.core.memory.buffer_manager import BufferManager, Slot
from weft.core.memory.memory_plan import ArenaPlan
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
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import tflite_op
from weft.kernels.compile_error import kernel_refused
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.dialect import Dialect, KernelParts, View, cut_to_bits, extended, with_suffix
from weft.kernels.formats import from_bits, is_coded, to_bits
from weft.kernels.gpu_op import GpuOp, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.source import Arg, KernelCode, KernelSource, Shared
from weft.kernels.template import add_shader_folder
from weft.ops.gpu.elementwise import launch_expression
from weft.ops.gpu.move import Strides, launch_move

__all__ = [
    "API_VERSION", "SHAPES_INFERRED", "ArenaPlan", "Arg", "Array", "BackendError", "BarrierCommand", "Binding",
    "BufferManager", "ClosedError", "Command", "CompileError", "Constants", "CopyCommand", "CpuBackend",
    "DeviceCaps", "DeviceError", "DeviceLost", "DeviceStats", "Dialect", "DiskCache", "ExecutionCreator",
    "ExecutionError", "ExplainsRefusal", "FailedPart", "FrontEnd", "GlslDialect", "GpuBackend", "GpuBuffer",
    "GpuCreator", "GpuDevice", "GpuOp", "HostBackend", "KernelBuilder", "KernelCode", "KernelParts",
    "KernelSource", "LaunchCommand", "MemoryKind", "ModelError", "Names", "NoDevice", "OpClass",
    "OpenCLDialect", "OutOfMemory", "Pass", "PassContext", "PassGroup", "Profiled", "ProfilingContext",
    "Property", "ReadOptions", "Reason", "Shape", "Shared", "Slot", "Strides", "Substitution",
    "TFLiteNode", "View",
    "WantedLayout", "add_shader_folder", "convert", "copy_tensor", "cut_to_bits", "extended", "from_bits",
    "from_storage", "front_ends", "gpu_op", "graph_pass", "infer_node", "is_coded", "is_compatible",
    "kernel_refused", "launch_expression", "launch_move", "precompiled", "raw_device", "register_front_end",
    "row_major", "storage_shape", "subgraph", "tflite_op", "to_bits", "to_storage", "with_suffix",
]
