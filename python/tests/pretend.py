"""Performs an operation with a clock that is only reckoned, so that seconds of a server's time cost none."""

from __future__ import annotations

from typing import Any, Callable, List

from scripted import ANSWER, DECISION, TASK

from modelless._effects import Now, Operation, Pause, Reply, Send, Together, Work

TOLD = Reply(200, {}, TASK.encode())
ANSWERED = Reply(200, DECISION, ANSWER.encode())


class Pretend:
    """`serve` answers a request, or raises what a driver would; it and pauses let the time pass."""

    def __init__(self, serve: Callable[["Pretend", Send], Reply]):
        self.now = 0.0
        self.sent: List[Send] = []
        #: Of operations that were to run side by side, how many at a time.
        self.at_once: List[int] = []
        self._serve = serve

    def run(self, operation: Operation[Any]) -> Any:
        """All of it."""
        try:
            effect = next(operation)
            while True:
                try:
                    result = self._perform(effect)
                except Exception as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as ended:
            return ended.value

    def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Send):
            self.sent.append(effect)
            return self._serve(self, effect)
        if isinstance(effect, Now):
            return self.now
        if isinstance(effect, Pause):
            self.now += effect.seconds
            return None
        if isinstance(effect, Work):
            return effect.run()
        assert isinstance(effect, Together)
        self.at_once.append(effect.at_once)
        return [self.run(operation) for operation in effect.operations]
