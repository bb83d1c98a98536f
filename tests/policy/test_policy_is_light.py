"""Importing the policies is light; what is promised is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import has.policy


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, has.policy; print([m for m in ('numba', 'numpy', 'pydantic', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", has.policy.__all__)
def test_every_promised_name_is_there(name):
    assert callable(getattr(has.policy, name))


def test_other_names_are_not():
    with pytest.raises(AttributeError):
        _ = has.policy.Batcher
