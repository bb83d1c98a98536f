"""Embeddings of media that an encode worker has seen before, by content.

A follow-up question sends its images again. What they are is known by a hash of the bytes that came (made where
they are decoded), what was made of them by this cache, one a worker, least recently used first out. Off in trials:
their media are all different, and figures must not depend on what ran before.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor


class EncoderCache:
    """Up to `max_bytes` of embeddings (0: keeps nothing). For one thread."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._kept: OrderedDict[str, Tensor] = OrderedDict()

    def get(self, digest: str) -> Tensor | None:
        """The embeddings [tokens, width] of a medium, now the most recently used; None: not known."""
        found = self._kept.get(digest)
        if found is not None:
            self._kept.move_to_end(digest)
        return found

    def put(self, digest: str, embeddings: Tensor) -> None:
        """Keep a copy of `embeddings`, which may be a view of a whole batch's, if there is room at all."""
        size = embeddings.nbytes
        if size > self.max_bytes or digest in self._kept:
            return
        self._kept[digest] = embeddings.clone()
        self.used_bytes += size
        while self.used_bytes > self.max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.used_bytes -= oldest.nbytes
