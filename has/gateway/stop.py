"""Stop strings in a stream of text: what may be shown already, and where the answer ends."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Feeds text through, holding back what may yet turn out to begin a stop string.

    The stop string itself is never shown. Of several, the one that starts first ends the answer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What can be shown now that `text` has come."""
        if not self._stops:
            return text
        held = self._held + text
        starts = [at for at in map(held.find, self._stops) if at >= 0]
        if starts:
            self.stopped, self._held = True, ""
            return held[: min(starts)]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
