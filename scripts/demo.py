"""Find shapes in a drawn scene on every device, print a table of times, and draw what each device saw."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import weft
from scripts import scenes
from weft import models
from weft.cli.console import line, note, table, working
from weft.errors import WeftError

SCENE = 54
PANEL = 256
"""Side of a picture in the drawing, in pixels."""
MARGIN, CAPTION, LEGEND = 16, 44, 40
PAPER, INK = (250, 250, 248), (30, 30, 34)
COLOURS = np.array([(32, 34, 42), (236, 112, 86), (84, 160, 232), (246, 200, 82), (110, 198, 132)], np.uint8)
"""The colour of each of the network's classes."""


@dataclass(frozen=True)
class Answer:
    """One device's result for the scene."""

    label: str
    name: str
    driver: str
    software: bool
    milliseconds: float
    prepared_in: float
    probabilities: NDArray[np.float32]

    @property
    def classes(self) -> NDArray[np.uint8]:
        """Return the most likely class of each pixel."""
        return np.asarray(self.probabilities[0].argmax(axis=0), np.uint8)


def ask(device: weft.DeviceInfo, picture: NDArray[np.float32], runs: int) -> Answer:
    """Run the network on a device, whole or not at all; the first run does not count."""
    label = f"{device.id}:{device.index}" if device.index else device.id
    start = time.perf_counter()
    with (
        working(f"preparing for {label}"),
        weft.load(models.path("shapes"), label, shapes={"image": picture.shape}, fallback="error") as session,
    ):
        session.run(picture)
        ready = time.perf_counter() - start
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            (probabilities,) = session.run(picture)
            times.append(time.perf_counter() - start)
    median = 1e3 * float(np.median(times))
    return Answer(label, device.name, device.driver, device.software, median, ready, probabilities)


def report(answers: Sequence[Answer], truth: NDArray[np.uint8]) -> None:
    """Print the table, with the share of pixels classified correctly."""
    reference = answers[0]
    rows = []
    for a in answers:
        difference = np.abs(a.probabilities - reference.probabilities).max()
        right = f"{100 * (a.classes == truth).mean():.1f} %"
        kind = "software" if a.software else "hardware"
        rows.append((a.label, a.name, a.driver, kind, f"{a.milliseconds:.2f}", f"{difference:.1e}", right))
    numbers = ("time, ms", "largest difference from the CPU", "pixels right")
    table(("device", "name", "driver", "kind", *numbers), rows, numbers=numbers)
    for device, why in weft.registry.unusable():
        note(f"{device.id}:{device.index} ({device.name}, {device.driver}) is unusable: {why}")
    for name, why in weft.registry.absent().items():
        note(f"{name} is absent: {why}")


def panel(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return a picture (height, width, 3) scaled to the size of a panel, with square pixels."""
    return Image.fromarray(pixels).resize((PANEL, PANEL), Image.Resampling.NEAREST)


def draw(picture: NDArray[np.float32], truth: NDArray[np.uint8], answers: Sequence[Answer]) -> Image.Image:
    """Return the scene, the true classes and each device's result side by side, above a legend."""
    scene = (picture[0].transpose(1, 2, 0) * 255).round().astype(np.uint8)
    panels = [("the scene", "drawn from a seed", scene), ("the truth", "class of each pixel", COLOURS[truth])]
    for a in answers:
        panels.append((a.label, f"{a.milliseconds:.2f} ms  {a.name}", COLOURS[a.classes]))
    step = PANEL + MARGIN
    sheet = Image.new("RGB", (MARGIN + step * len(panels), MARGIN + CAPTION + PANEL + LEGEND + MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    title, text = ImageFont.load_default(16), ImageFont.load_default(12)
    for k, (head, below, pixels) in enumerate(panels):
        x = MARGIN + k * step
        pen.text((x, MARGIN), head, INK, title)
        pen.text((x, MARGIN + 20), shortened(pen, below, text), INK, text)
        sheet.paste(panel(pixels), (x, MARGIN + CAPTION))
    x, y = MARGIN, MARGIN + CAPTION + PANEL + MARGIN
    for name, colour in zip(models.SHAPES_CLASSES, COLOURS, strict=True):
        pen.rectangle((x, y, x + 16, y + 16), fill=tuple(int(c) for c in colour), outline=INK)
        pen.text((x + 24, y), name, INK, text)
        x += 48 + int(pen.textlength(name, text))
    return sheet


def shortened(
    pen: ImageDraw.ImageDraw, words: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> str:
    """Return the words, shortened to fit above a panel."""
    if pen.textlength(words, font) <= PANEL:
        return words
    while pen.textlength(words + "...", font) > PANEL:
        words = words[:-1]
    return words + "..."


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description="Find shapes in a drawn scene, on every device.")
    parser.add_argument("--scene", type=int, default=SCENE, help="the number of the scene to draw")
    parser.add_argument("--runs", type=int, default=20, help="runs that are timed on each device")
    parser.add_argument("--out", type=Path, default=Path("demo.png"), help="the picture to write")
    parser.add_argument(
        "--expect", action="append", default=[], metavar="ID",
        help="fail unless a device of this kind is in the table; may be given several times",
    )
    options = parser.parse_args()
    picture, labels = scenes.batch(options.scene, 1)
    truth = scenes.targets(labels)[0]
    answers = []
    for device in weft.devices():
        try:
            answers.append(ask(device, picture, options.runs))
        except WeftError as e:
            line(f"{device.id}:{device.index} ({device.name}) does not work:\n{e}", "red")
    report(answers, truth)
    draw(picture, truth, answers).save(options.out)
    line(f"\n{options.out} shows the scene and what each device saw in it.")
    there = {a.label.partition(":")[0] for a in answers}
    missing = [kind for kind in options.expect if kind not in there]
    if missing:
        sys.exit(f"the demo failed: {' and '.join(missing)} was set up and is not in the table; `weft doctor` says why")


if __name__ == "__main__":
    main()
