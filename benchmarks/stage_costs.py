"""CPU milliseconds of each stage of the bundled models, on one thread: a Markdown table on stdout.

Run from the repository root: `python benchmarks/stage_costs.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from has.models.media import decode_media
from has.models.names import BUNDLED
from has.models.stage_model import PromptInput, load_stage_model
from has.models.synthetic import media_bytes, synthetic_media

REPEATS = 15


def cpu_ms(work: Callable[[], object]) -> float:
    """Median CPU time of this thread, after two runs to warm up."""
    spent = []
    for _ in range(REPEATS + 2):
        before = time.thread_time()
        work()
        spent.append(time.thread_time() - before)
    return 1e3 * median(spent[2:])


def costs(name: str) -> dict[str, float]:
    model = load_stage_model(name)
    kind = BUNDLED[name]
    table: dict[str, float] = {}
    raw = media_bytes(kind, synthetic_media(kind, name, 0))
    item = decode_media(kind, raw, name)
    table["preprocess, one item"] = cpu_ms(lambda: decode_media(kind, raw, name))
    for batch in (1, 2, 4, 8):
        table[f"encode, items x {batch}"] = cpu_ms(lambda b=batch: model.encode([item] * b))
    for tokens in (64, 128, 256, 512, 1024):
        table[f"prefill, {tokens} tokens"] = cpu_ms(lambda t=tokens: model.prefill([PromptInput([20] * t)]))
    table["prefill, 128 tokens x 4"] = cpu_ms(lambda: model.prefill([PromptInput([20] * 128)] * 4))
    first = model.prefill([PromptInput([20] * 128)])[0]
    for batch in (1, 2, 4, 8, 16, 32):
        slots = model.slots(batch, 256)
        for slot in range(batch):
            slots.load(slot, first.kv, first.next_position)
        table[f"decode step, context 128 x {batch}"] = cpu_ms(
            lambda s=slots, b=batch: s.step(range(b), [20] * b)
        )
    return table


def main() -> None:
    torch.set_num_threads(1)
    columns = {name: costs(name) for name in BUNDLED}
    print("| stage | " + " | ".join(columns) + " |")
    print("|---|" + "---|" * len(columns))
    for row in next(iter(columns.values())):
        print(f"| {row} | " + " | ".join(f"{table[row]:.1f}" for table in columns.values()) + " |")


if __name__ == "__main__":
    main()
