"""What must stay cheap to import stays so."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "numba", "optuna", "pandas", "pyarrow", "scipy", "starlette", "skopt")


@pytest.mark.parametrize("statement", ["import has", "import has.policy", "import has.cli.main"])
def test_importing_is_light(statement: str) -> None:
    code = f"import sys; {statement}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
