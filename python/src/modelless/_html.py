"""How objects look in a notebook. Whatever a server sent is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence

if TYPE_CHECKING:
    from ._answers import Answer
    from ._job import Job
    from ._shown import Explanation, Task

#: Numbers of a vector or tensor that are shown.
SHOWN = 8


def _cell(value: Any) -> str:
    return "" if value is None else escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], strong: Optional[int] = None) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = []
    for at, row in enumerate(rows):
        style = ' style="font-weight:bold"' if at == strong else ""
        body.append(f"<tr{style}>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>")
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def answer(shown: Answer) -> str:
    """What was answered, by whom and why."""
    if not shown.kind:
        part = f"<p>{escape(f'{shown.raw!r:.200}')}</p>"
    elif shown.kind == "tensor":
        outputs = shown.outputs.values()
        part = _table(("output", "type", "shape"), [(one.name, one.datatype, one.shape) for one in outputs])
    elif shown.kind == "feature-extraction":
        first = ", ".join(f"{number:.4f}" for number in shown.vector[:SHOWN])
        more = ", …" if len(shown.vector) > SHOWN else ""
        part = f"<p>{len(shown.vector)} numbers: [{first}{more}]</p>"
    else:
        part = _table(("label", "score"), [(one.label, one.score) for one in shown.labels], 0)
    return f"{part}<p>answered by {escape(str(shown.decision))}</p>"


def task(shown: Task) -> str:
    """A task with its frontier."""
    head = f"<p><b>{escape(shown.name)}</b> ({escape(shown.kind)}): {escape(shown.description)}</p>"
    if not shown.variants:
        return head
    best = shown.frontier()
    columns = ("variant", "accuracy", "from", "latency ms", "known", "on frontier")
    rows = [
        (one.name, one.accuracy, one.accuracy_provenance, one.latency_ms, one.latency_known, "yes" if one in best else "")
        for one in sorted(shown.variants, key=lambda one: -(one.accuracy or 0.0))
    ]
    return head + shown.frontier_svg() + _table(columns, rows)


def explanation(shown: Explanation) -> str:
    """What would be decided, with every candidate."""
    if shown.action == "refuse":
        could = f"; could be met: {escape(str(shown.nearest))}" if shown.nearest else ""
        said = f"refused: {escape(shown.error or '')}{could}"
    else:
        said = f"{escape(shown.action)}: {escape(shown.variant or '')} on {escape(shown.node or 'any node')}"
    chosen = next((at for at, one in enumerate(shown.candidates) if one.finding == "chosen"), None)
    columns = ("variant", "node", "accuracy", "latency ms", "wait ms", "USD per 1,000", "why")
    rows = [
        (one.variant, one.node, one.accuracy, one.latency_ms, one.wait_ms, one.cost, "; ".join([one.because, *one.notes]))
        for one in shown.candidates
    ]
    return f"<p><b>{escape(shown.task)}</b>: {said}</p>{_table(columns, rows, chosen)}"


def job(shown: Job) -> str:
    """How far a job is, and what it costs."""
    ended = shown.done + shown.failed
    why = f": {escape(shown.why)}" if shown.why else ""
    late = ", late for its deadline" if shown.late else ""
    head = f"<p><b>job {shown.id}</b> ({escape(shown.name)}) of {escape(shown.task)}: {escape(shown.state)}{why}{late}</p>"
    bar = f'<progress value="{ended}" max="{shown.inputs}"></progress>'
    rows = [(shown.inputs, shown.received, shown.done, shown.failed, shown.estimate, shown.cost, shown.device_s)]
    return head + bar + _table(("inputs", "received", "answered", "failed", "USD expected", "USD so far", "s of devices"), rows)
