"""The trace that a program is in, so that what the server does for it becomes part of it.

By OpenTelemetry's interface for programs, where the program itself uses that: nothing of it is imported here.
"""

from __future__ import annotations

import sys
from typing import List, Tuple


def headers() -> List[Tuple[bytes, bytes]]:
    """`traceparent`, and `tracestate` where there is one, as W3C's Trace Context has them. Baggage stays where it is."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return []
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return []
    told = [(b"traceparent", f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}".encode())]
    state = span.trace_state.to_header()
    if state:
        told.append((b"tracestate", state.encode()))
    return told
