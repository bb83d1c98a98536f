"""Small words of messages: one way to write a share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import has
from has.core.words import percent, signed


@pytest.mark.parametrize(
    ("share", "digits", "shown"),
    [
        (0.907, 1, "90.7 %"),
        (1.0, 1, "100.0 %"),
        (0.25, 0, "25 %"),
        (0.9, None, "90 %"),
        (0.995, None, "99.5 %"),
        (0.9999, None, "99.99 %"),
    ],
)
def test_a_share_is_written_in_percent(share: float, digits: int | None, shown: str) -> None:
    assert percent(share, digits) == shown


def test_a_share_that_is_not_known_is_none() -> None:
    assert percent(None) is None


@pytest.mark.parametrize(
    ("change", "digits", "shown"),
    [(0.476, 1, "+47.6 %"), (-0.1, 0, "-10 %"), (0.0004, 1, "0.0 %"), (-0.0004, 1, "0.0 %")],
)
def test_a_change_has_its_sign(change: float, digits: int, shown: str) -> None:
    assert signed(change, digits) == shown


def test_no_share_is_written_in_any_other_way() -> None:
    """Python's own `%` format sets no blank before the sign."""
    other = re.compile(r":[^{}]*%\}")
    for path in Path(has.__file__).parent.rglob("*.py"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not other.search(line), f"{path}:{number}: {line.strip()}"
