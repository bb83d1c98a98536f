"""A search takes as much memory for many candidates as for few: it keeps a few numbers of each, no run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PEAK = """
import json, sys, tracemalloc
from has.core.space import SearchSpace
from has.search.run import search
from has.search.space import enumerate_space
from tests.search.small import make_profile, make_workload

def look(step):
    space = SearchSpace(version=1, prefill_offload={"step": step})
    search(5, make_profile(), make_workload(), space=space, rate=6.0, requests=300, trials=2)
    return len(enumerate_space(space, 5))

look(0.5)  # loads what is loaded once
tracemalloc.start()
points = look(float(sys.argv[1]))
print(json.dumps([points, tracemalloc.get_traced_memory()[1]]))
"""


def peak(step: float) -> tuple[int, int]:
    """Candidates with this step of s, and the most bytes that Python and numpy held at once."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PEAK, str(step)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    points, size = json.loads(done.stdout)
    return points, size


def test_four_times_the_candidates_take_hardly_more_memory() -> None:
    few, small = peak(0.25)
    many, large = peak(0.05)
    assert many > 3.5 * few
    assert large < 1.5 * small
