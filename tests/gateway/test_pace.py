"""How fast a service lately moved."""

from __future__ import annotations

from has.gateway.pace import WINDOW_S, Pace


def test_what_is_older_than_the_window_is_forgotten() -> None:
    pace = Pace()
    assert pace.rates(0.0) == (0.0, 0.0)
    for second in range(20):
        pace.first_token(float(second))
        pace.released(float(second), 30)
    assert pace.rates(19.0) == (11 / WINDOW_S, 330 / WINDOW_S), "both ends of the window are in it"
    assert pace.rates(25.5) == (4 / WINDOW_S, 120 / WINDOW_S)
    assert pace.rates(99.0) == (0.0, 0.0)
