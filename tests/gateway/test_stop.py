"""Stop strings: whatever the pieces a text comes in, the answer ends where the first stop string starts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from has.gateway.stop import StopText

fixed = settings(deadline=None, derandomize=True, max_examples=300)


@fixed
@given(
    pieces=st.lists(st.text("ab\u00e9", max_size=4), max_size=20),
    stops=st.lists(st.text("ab\u00e9", min_size=1, max_size=5), max_size=3),
)
def test_it_shows_all_before_the_first_stop_and_nothing_after(pieces, stops):
    text = StopText(stops)
    shown, read = "", ""
    for piece in pieces:
        shown += text.feed(piece)
        read += piece
        if text.stopped:
            break
    if not text.stopped:
        shown += text.flush()
    starts = [at for at in map(read.find, stops) if at >= 0]
    assert text.stopped == bool(starts)
    assert shown == (read[: min(starts)] if starts else read)


def test_nothing_is_held_back_without_need():
    text = StopText(["END"])
    assert text.feed("the ") == "the "
    assert text.feed("EN") == ""
    assert text.feed("TRY") == "ENTRY"
    assert text.feed("E") == ""
    assert text.flush() == "E"
    assert StopText([]).feed("x") == "x"
