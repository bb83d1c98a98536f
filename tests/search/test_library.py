"""`has.search` is a function to whoever uses the library, whatever was imported before."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALL = """
import inspect, sys
{before}
import has
from tests.search.small import make_profile, make_workload
for seed in (0, 1):
    outcome = has.search(gpus=2, profile=make_profile(), workload=make_workload(), trials=1, seed=seed)
    print(outcome.best.label)
from has.search.run import search
"""


@pytest.mark.parametrize(
    "before", ["", "import has.search", "import has.search.run", "from has import search"]
)
def test_search_can_be_called_again_and_after_any_import(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALL.format(before=before)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split("\n")) == 3
