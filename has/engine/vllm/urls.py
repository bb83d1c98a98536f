"""Where the instances of a deployment listen, by role."""

from __future__ import annotations

from dataclasses import dataclass

from has.gateway.port import PoolName


@dataclass(frozen=True, slots=True)
class Urls:
    """Base URLs of the instances of each role, by index; `span` encode workers share a local prefill instance."""

    encode: tuple[str, ...] = ()
    local_prefill: tuple[str, ...] = ()
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    span: int = 1

    def all(self) -> list[tuple[PoolName, int, str]]:
        """(pool, worker index, URL). A local prefill instance belongs to every encode worker that it serves."""
        named: list[tuple[PoolName, tuple[str, ...]]] = [
            ("encode", self.encode),
            ("prefill", self.prefill),
            ("decode", self.decode),
            ("mixed", self.mixed),
        ]
        listed = [(pool, i, url) for pool, urls in named for i, url in enumerate(urls)]
        served = range(len(self.local_prefill) * self.span)
        return listed + [("encode", worker, self.prefill_of(worker, remote=False)) for worker in served]

    def prefill_of(self, worker: int, *, remote: bool) -> str:
        """The instance that prefills for `worker` of the prefill pool, or beside encode worker `worker`."""
        return self.prefill[worker] if remote else self.local_prefill[worker // self.span]
