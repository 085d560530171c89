"""What tuning can hope for, told before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

import weft
from tests.helpers.timed_gpu import TimedDevice, convolutions
from tests.helpers.tuned_nets import tune
from weft.backends.gpu.tuning.prospect import Prospect, prospects
from weft.kernels.cost_model import excess


def hoped(**options: bool) -> Prospect:
    """Return what tuning a convolution with three tiles, of 100, 60 and 80 us, can hope for."""
    with weft.load(convolutions(), device="null", fallback="error") as session:
        (found,) = prospects(session.pipelines, **options)
    return found


def test_it_is_the_time_of_open_choices_by_how_far_such_were_from_the_best(device: TimedDevice) -> None:
    found, far = hoped(), excess("conv_gemm")
    assert far is not None and far > 1
    assert (found.problems, found.tuned, found.unknown_us) == (1, 0, 0.0)
    assert found.us == pytest.approx(100.0) and found.gain_us == pytest.approx(100.0 * (1 - 1 / far))


def test_of_tuned_choices_there_is_nothing_to_hope_for(device: TimedDevice) -> None:
    tune(convolutions())
    found, again = hoped(), hoped(again=True)
    assert (found.problems, found.tuned, found.us, found.gain_us) == (1, 1, 0.0, 0.0)
    assert again.tuned == 0 and again.us == pytest.approx(60.0) and again.gain_us > 0


def test_nothing_is_known_of_software_devices(device: TimedDevice) -> None:
    device.caps = replace(device.caps, software=True)
    found = hoped()
    assert found.gain_us == 0.0 and found.unknown_us == found.us == pytest.approx(100.0)
