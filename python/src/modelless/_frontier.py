"""The frontier of a task's variants, and a picture of it: SVG, written as text, for light and dark pages.

How well a variant is known is told by its shape and whether it is beaten by its filling, so neither needs a colour. It looks as
what `modelless task show --plot` draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Callable, Iterable, List, Sequence, Tuple

if TYPE_CHECKING:
    from ._shown import Task, Variant

WIDTH, HEIGHT = 720.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 24.0, 40.0, 74.0
#: Size of a letter of a label, near enough to keep labels apart.
LETTER = (6.2, 13.0)

#: Times that differ by less are equal, as in `modelless task show --plot`.
EQUAL = 1.03

Box = Tuple[float, float, float, float]


def _known(variants: Iterable[Variant]) -> List[Tuple[Variant, float, float]]:
    """Those that have a place: variant, latency, accuracy."""
    return [
        (one, one.latency_ms, one.accuracy)
        for one in variants
        if one.latency_ms is not None and one.accuracy is not None and 0 < one.latency_ms < math.inf
    ]


def frontier(variants: Iterable[Variant]) -> List[Variant]:
    """Those that no other equals or beats on these two axes, quickest first. What differs by less time than two measurements of
    one variant is equal, and of equals the most accurate is enough. A candidate beats nobody: it does not answer yet."""
    known = sorted(_known(variants), key=lambda entry: (-entry[2], entry[1]))
    best: List[Tuple[Variant, float]] = []
    for one, latency, accuracy in known:
        # Those that stay come first by accuracy, so time alone decides.
        if not any(kept.default and quickest <= latency * EQUAL for kept, quickest in best):
            best.append((one, latency))
    return [one for one, _ in sorted(best, key=lambda entry: (entry[1], entry[0].name))]


@dataclass
class _Axes:
    least_ms: float
    most_ms: float
    least: float
    most: float

    def x(self, latency: float) -> float:
        span = math.log(self.most_ms / self.least_ms)
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(latency / self.least_ms) / span

    def y(self, accuracy: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (accuracy - self.least) / (self.most - self.least)

    def times(self) -> List[float]:
        """1, 2 and 5 of every power of ten."""
        powers = range(math.floor(math.log10(self.least_ms)) - 1, math.ceil(math.log10(self.most_ms)) + 1)
        ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        return [tick for tick in ticks if self.least_ms <= tick <= self.most_ms]

    def accuracies(self) -> List[float]:
        step = next(step for step in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if (self.most - self.least) / step <= 8)
        first = math.ceil(self.least / step - 1e-9)
        return [at * step for at in range(first, math.floor(self.most / step + 1e-9) + 1)]


def _around(points: Sequence[Tuple[Variant, float, float]]) -> _Axes:
    times = [latency for _, latency, _ in points] or [1.0]
    shares = [accuracy for _, _, accuracy in points] or [0.5]
    margin = max((max(shares) - min(shares)) * 0.08, 0.005)
    return _Axes(min(times) / 1.3, max(times) * 1.6, max(min(shares) - margin, -0.01), min(max(shares) + margin, 1.01))


def svg(task: Task) -> str:
    """Accuracy against latency of all variants of a task."""
    points = _known(task.variants)
    axes = _around(points)
    best = frontier(task.variants)
    out: List[str] = []
    _grid(axes, out)
    line = " ".join(f"{axes.x(one.latency_ms or 1):.1f},{axes.y(one.accuracy or 0):.1f}" for one in best)
    out.append(f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>')
    taken: List[Box] = []
    for one, latency, accuracy in points:
        x, y = axes.x(latency), axes.y(accuracy)
        about = f"{one.name}: {accuracy * 100:.2f} %, {latency:.3f} ms ({one.latency_known})"
        fill = "currentColor" if one in best else "none"
        out.append(f'<g fill="{fill}" stroke="currentColor"><title>{escape(about)}</title>{_mark(one, x, y)}</g>')
        taken.append((x - 5, y - 5, x + 5, y + 5))
    for one, latency, accuracy in points:
        box = _place(axes.x(latency), axes.y(accuracy), one.name, taken)
        taken.append(box)
        out.append(_text(box[0], box[3] - 3, one.name, "start"))
    out.append(_text(WIDTH / 2, 22, f"{task.name}: {task.metric} against latency", "middle", 15))
    out.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 36, "latency of one item in ms (mean, batch 1), logarithmic", "middle"))
    out.append(_text(LEFT, HEIGHT - 10, _legend(task.variants), "start", 11))
    size = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" height="{HEIGHT:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="max-width:100%;font-family:sans-serif" role="img">'
    return "".join([head, *out, "</svg>"])


def _grid(axes: _Axes, out: List[str]) -> None:
    def line(x1: float, y1: float, x2: float, y2: float) -> str:
        place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        return f'<line {place} stroke="currentColor" stroke-opacity="0.15"/>'

    for tick in axes.times():
        out.append(line(axes.x(tick), TOP, axes.x(tick), HEIGHT - BOTTOM))
        out.append(_text(axes.x(tick), HEIGHT - BOTTOM + 17, f"{tick:g}", "middle"))
    for share in axes.accuracies():
        out.append(line(LEFT, axes.y(share), WIDTH - RIGHT, axes.y(share)))
        out.append(_text(LEFT - 7, axes.y(share) + 4, f"{share * 100:.1f} %", "end"))


def _mark(one: Variant, x: float, y: float) -> str:
    if one.latency_known == "estimated":
        return f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z"/>'
    if one.latency_known == "coarse":
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def _legend(variants: Iterable[Variant]) -> str:
    known = {one.latency_known for one in variants}
    shapes = [("measured", "round: measured"), ("coarse", "square: coarse"), ("estimated", "triangle: estimated")]
    return "; ".join(["filled: on these two axes no other is as good", *(words for name, words in shapes if name in known)])


def _place(x: float, y: float, name: str, taken: Sequence[Box]) -> Box:
    """Beside the point, where nothing else stands; or right of it all the same."""
    width, height = len(name) * LETTER[0], LETTER[1]
    offsets = [(8, -6), (8, 8), (8, -20), (-8 - width, -6), (-8 - width, 8), (-width / 2, -22), (-width / 2, 10)]
    overlaps: Callable[[Box, Box], bool] = lambda a, b: a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    boxes = [(x + dx, y + dy, x + dx + width, y + dy + height) for dx, dy in offsets]
    free = (box for box in boxes if box[2] < WIDTH and box[0] > 0 and not any(overlaps(box, other) for other in taken))
    return next(free, boxes[0])


def _text(x: float, y: float, words: str, anchor: str, size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="currentColor">{escape(words)}</text>'
