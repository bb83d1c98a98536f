"""A bench whose works are small sums: real computation on the one thread that is timed, quickly done."""

from __future__ import annotations

import os
import threading


class Toy:
    def __init__(self, name: str) -> None:
        self.facts = {"media_unit": 20, "name": name, "loader": os.getpid()}

    def prepare(self, stage: str, batch: int, tokens: int):
        terms = range(40 * batch * tokens)
        return lambda: sum(terms)


def open_toy(name: str) -> Toy:
    return Toy(name)


def worker(toy: Toy, index: int):
    def handle(message):
        if message.get("die"):
            os._exit(3)
        if message.get("hang"):
            threading.Event().wait()
        if message.get("fail"):
            raise RuntimeError("as asked")
        return {"index": index, "pid": os.getpid(), "loader": toy.facts["loader"], "said": message.get("say")}

    return handle
