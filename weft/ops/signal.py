"""Fourier transforms of signals, and the weights that turn their spectra into mel bands.

Where a device lacks them, a transform is a product with a constant matrix of cosines and sines.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from weft.core.graph.composite import Body, decomposition, why_whole
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.elementwise import widen
from weft.ops.shape import given, known, one_axis, optional, sized, unfit

MOST_FACTORS = 1 << 24
"""The most elements of a constant matrix that stands for a transform: 64 MiB of float32."""


def _too_large(elements: int, size: int) -> str:
    """Return why a transform is no product with a constant matrix; "" if the matrix is small enough."""
    if elements <= MOST_FACTORS:
        return ""
    matrix = f"as a product with a constant matrix, which would have {elements} elements for length {size}"
    return f"it runs {matrix}; the most is {MOST_FACTORS}"


@standard_op(op_class="reduction", most_inputs=3, flags=("inverse", "onesided"))
class DFT(Op):
    """The discrete Fourier transform along an axis; inputs x (..., 1 or 2), dft_length, axis (default -2).

    The last axis holds real and imaginary parts. With `onesided`, what follows by symmetry is left out: of the
    output, which is that of a real signal, or, with `inverse`, of the input, and the output is real.
    """

    inverse: int = 0
    onesided: int = 0

    def plan(self, dims: Shape, length: Array | None, axis: Array | None) -> tuple[int, int, int]:
        """Return the axis, the length of the transform and the number of bins that come out."""
        rank = len(dims)
        if rank < 2 or dims[-1] not in (1, 2):
            raise unfit(f"shape {dims} holds no signals with real, or real and imaginary, parts")
        if self.onesided and dims[-1] != (2 if self.inverse else 1):
            kind = "spectrum of two parts" if self.inverse else "real signal"
            raise ModelError("a transform with onesided=1 does not fit", why=f"it needs a {kind}, got shape {dims}")
        at = -2 if axis is None else int(axis.item())
        if one_axis(at, rank) == rank - 1:
            raise unfit("the axis of real and imaginary parts is not that of a signal")
        at = one_axis(at, rank)
        real = self.inverse and self.onesided
        size = int(length.item()) if length is not None else 2 * (dims[at] - 1) if real else dims[at]
        if size == dims[at] == 0 and length is None and not self.onesided:
            return at, 0, 0
        if size < 1:
            raise unfit(f"a transform of length {size} does not exist")
        return at, size, size // 2 + 1 if self.onesided and not self.inverse else size

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        length = None if optional(inputs, 1) is None else known(constants, 1, "dft_length")
        axis = None if optional(inputs, 2) is None else known(constants, 2, "axis")
        if not x.dtype.is_float or any(v is not None and v.size != 1 for v in (length, axis)):
            raise unfit(f"signals of {x.dtype.value} with a length {length} along {axis} cannot be transformed")
        at, _, bins = self.plan(x.dims, length, axis)
        return (sized((*x.dims[:at], bins, *x.dims[at + 1 : -1], 1 if self.inverse and self.onesided else 2), x.dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return those of a fast transform, about."""
        return 5 * prod(outputs[0]) * max(max(outputs[0]).bit_length(), 1)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        at, size, bins = self.plan(x.shape, optional(inputs, 1), optional(inputs, 2))
        if not size:
            return np.zeros((*x.shape[:-1], 2), x.dtype)
        wide = widen(x)
        signal = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
        if self.inverse and self.onesided:
            return np.fft.irfft(signal, size, at)[..., None].astype(x.dtype)
        out = (np.fft.ifft if self.inverse else np.fft.fft)(signal, size, at).take(np.arange(bins), at)
        return np.stack([out.real, out.imag], axis=-1).astype(x.dtype)

    def read(self, length: int, size: int) -> int:
        """Return how many samples, or bins, are read of `length` along the axis."""
        return min(length, size // 2 + 1 if self.inverse and self.onesided else size)

    def why_whole(self, inputs: Sequence[Shape | None], constants: Constants, outputs: Sequence[Shape]) -> str:
        """Return the reason of a transform that is too long."""
        dims = given(inputs, 0)
        at, size, bins = self.plan(dims, optional(constants, 1), optional(constants, 2))
        return _too_large(self.read(dims[at], size) * dims[-1] * bins * outputs[0][-1], size)

    def factors(self, read: int, size: int, bins: int, parts: int) -> Array:
        """Return (read * parts, bins * parts of the output): what a signal of `read` samples is multiplied with."""
        sample, k = np.arange(read)[:, None], np.arange(bins)[None, :]
        turn = 2 * np.pi / size * (sample * k % size) * (1 if self.inverse else -1)
        scale = np.full((read, 1), 1 / size if self.inverse else 1.0)
        if self.inverse and self.onesided:
            # All but the first bin, and the middle one of an even length, stand for their mirror images too.
            twice = (sample > 0) & (2 * sample != size)
            cos, sin = np.cos(turn) * scale * (1 + twice), -np.sin(turn) * scale * 2 * twice
            return np.stack([cos, sin], axis=1).reshape(read * 2, bins)
        real, imaginary = np.cos(turn) * scale, np.sin(turn) * scale
        rows = [np.stack([real, imaginary], axis=-1)]
        if parts == 2:
            rows.append(np.stack([-imaginary, real], axis=-1))
        return np.stack(rows, axis=1).reshape(read * parts, bins * 2)


@decomposition("DFT")
def _dft(op: DFT, make: Body, node: Node) -> Sequence[str]:
    if why_whole(make, node):
        return []
    given_ = [None if not name else make.known(name) for name in (*node.inputs[1:], "", "")][:2]
    x = node.inputs[0]
    dims = make.dims(x)
    at, size, bins = op.plan(dims, *given_)
    out, read = make.dims(node.outputs[0]), op.read(dims[at], size)
    if read < dims[at]:
        x = make.add("Slice", x, *(make.ints(n) for n in (0, read, at)))
    last = len(dims) - 1
    order = (*(a for a in range(last) if a != at), at, last)
    outer = [dims[a] for a in order[:-2]]
    x = make.add("Transpose", x, perm=order) if order != tuple(range(last + 1)) else x
    x = make.reshape(x, prod(outer), read * dims[-1])
    factors = op.factors(read, size, bins, dims[-1])
    y = make.add("MatMul", x, make.constant(factors.astype(make.dtype(x).numpy)))
    y = make.reshape(y, *outer, bins, out[-1])
    return [make.add("Transpose", y, perm=tuple(order.index(a) for a in range(last + 1)))]


@standard_op(op_class="reduction", most_inputs=4, flags=("onesided",))
class STFT(Op):
    """The Fourier transforms of a signal's frames.

    Inputs signal (N, samples, 1 or 2) or (N, samples), which is real, frame_step, window, frame_length. With `onesided`
    and a real signal, the bins behind the middle one are left out.
    """

    onesided: int = 1

    def parts(self, dims: Shape) -> int:
        """Return 1 for a real signal, 2 for one with imaginary parts."""
        return dims[2] if len(dims) == 3 else 1

    def plan(self, dims: Shape, step: Array, window: Shape | None, length: Array | None) -> tuple[int, int, int, int]:
        """Return the samples between frames, those of a frame, the number of frames and the bins of each."""
        if len(dims) not in (2, 3) or self.parts(dims) not in (1, 2):
            raise unfit(f"shape {dims} holds no signals with real, or real and imaginary, parts")
        hop = int(step.item())
        size = int(length.item()) if length is not None else window[0] if window else dims[1]
        if hop < 1 or not 1 <= size <= dims[1] or (window is not None and window != (size,)):
            raise unfit(f"frames of {size} samples, {hop} apart, with a window of {window} do not fit shape {dims}")
        onesided = self.onesided and self.parts(dims) == 1
        return hop, size, (dims[1] - size) // hop + 1, size // 2 + 1 if onesided else size

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, window = given(inputs, 0), optional(inputs, 2)
        given(inputs, 1)
        step = known(constants, 1, "frame_step")
        length = None if optional(inputs, 3) is None else known(constants, 3, "frame_length")
        if not x.dtype.is_float or step.size != 1 or (length is not None and length.size != 1):
            raise unfit(f"signals {x} with a step of {step} and a length of {length} have no frames")
        if window is not None and window.dtype is not x.dtype:
            raise unfit(f"the window is {window.dtype.value}, the signal {x.dtype.value}")
        _, _, frames, bins = self.plan(x.dims, step, None if window is None else window.dims, length)
        return (sized((x.dims[0], frames, bins, 2), x.dtype),)

    def why_whole(self, inputs: Sequence[Shape | None], constants: Constants, outputs: Sequence[Shape]) -> str:
        """Return the reason of frames that are too long."""
        dims = given(inputs, 0)
        _, size, _, bins = self.plan(dims, given(constants, 1), optional(inputs, 2), optional(constants, 3))
        return _too_large(size * self.parts(dims) * bins * 2, size)

    def places(self, hop: int, size: int, frames: int) -> Array:
        """Return (frames, size): the sample that each frame has at each place."""
        return np.arange(frames)[:, None] * hop + np.arange(size)

    def reference(self, *inputs: Array | None) -> Array:
        x, window = given(inputs, 0), optional(inputs, 2)
        shape = None if window is None else window.shape
        hop, size, frames, bins = self.plan(x.shape, given(inputs, 1), shape, optional(inputs, 3))
        wide = widen(x).reshape(*x.shape[:2], self.parts(x.shape))
        signal = wide[..., 0] if self.parts(x.shape) == 1 else wide[..., 0] + 1j * wide[..., 1]
        cut = signal[:, self.places(hop, size, frames)] * (1 if window is None else widen(window))
        out = np.fft.fft(cut, axis=-1)[..., :bins]
        return np.stack([out.real, out.imag], axis=-1).astype(x.dtype)


@decomposition("STFT")
def _stft(op: STFT, make: Body, node: Node) -> Sequence[str]:
    if why_whole(make, node):
        return []
    x, step, window, length = (*node.inputs, "", "")[:4]
    dims, out = make.dims(x), make.dims(node.outputs[0])
    taken = make.dims(window) if window else None
    stride = make.known(step)
    assert stride is not None  # the shape rule needs it
    hop, size, frames, bins = op.plan(dims, stride, taken, make.known(length) if length else None)
    dtype, parts = make.dtype(x).numpy, op.parts(dims)
    cut = make.add("Gather", make.reshape(x, *dims[:2], parts), make.constant(op.places(hop, size, frames)), axis=1)
    if window:
        column = make.reshape(window, size, 1)
        cut = make.add("Mul", cut, column)
    flat = make.reshape(cut, dims[0] * frames, size * parts)
    factors = DFT().factors(size, size, bins, parts)
    y = make.add("MatMul", flat, make.constant(factors.astype(dtype)))
    return [make.reshape(y, *out)]


@standard_op(op_class="arithmetic", most_inputs=5)
class MelWeightMatrix(Op):
    """The shares of spectrum bins in bands that are equally wide on the mel scale of O'Shaughnessy (1987).

    Inputs num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz; one number each.
    """

    output_datatype: DType = DType.FLOAT32

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
        for k, name in enumerate(names):
            given(inputs, k)
            if known(constants, k, name).size != 1:
                raise unfit(f"{name} is not one number")
        bands, length, rate, low, high = (known(constants, k, n).item() for k, n in enumerate(names))
        if bands < 1 or length < 1 or rate < 1 or not 0 <= low <= high <= rate / 2:
            raise unfit(f"{bands} bands from {low} to {high} Hz do not fit {length} samples at {rate} Hz")
        return (sized((int(length) // 2 + 1, int(bands)), self.output_datatype),)

    def reference(self, *inputs: Array | None) -> Array:
        bands, length, rate, low, high = (given(inputs, k).item() for k in range(5))
        mel = [2595 * np.log10(1 + edge / 700) for edge in (low, high)]
        edges = mel[0] + np.arange(bands + 2) * (mel[1] - mel[0]) / (bands + 2)
        bins = np.floor((length + 1) * 700 * (10 ** (edges / 2595) - 1) / rate)
        bin_ = np.arange(length // 2 + 1)[:, None]
        first, middle, last = bins[:-2], bins[1:-1], bins[2:]
        up = (bin_ - first) / np.where(middle > first, middle - first, 1)
        up = np.where(middle > first, up, bin_ == middle) * ((bin_ >= first) & (bin_ <= middle))
        down = (last - bin_) / np.where(last > middle, last - middle, 1)
        falls = (bin_ >= middle) & (bin_ < last)
        return np.asarray(np.where(falls, down, up), self.output_datatype.numpy)
