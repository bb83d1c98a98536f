"""Numbers, tables and pages: what is shown is what was meant, and nothing that was written by others is markup."""

from __future__ import annotations

import io
from html import escape
from html.parser import HTMLParser

import pytest

from has.report.document import Bars, Command, Document, Section, Table, number, numeric_columns, two_columns
from has.report.html import page
from has.report.terminal import draw

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Checked(HTMLParser):
    """Balanced tags, and what a page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (True, "yes"),
        (3000, "3000"),
        (0.0, "0"),
        (5.0, "5"),
        (1234.567, "1235"),
        (123456.7, "123457"),
        (0.123456, "0.1235"),
        (0.00001, "1e-05"),
        ("12 %", "12 %"),
    ],
)
def test_numbers_have_four_digits_and_no_exponents_in_sight(value: object, shown: str) -> None:
    assert number(value) == shown


def test_figures_are_flush_right_and_words_are_not() -> None:
    table = Table(("a", "b", "c", "d"), [("x", 1, "1.5 %", None), ("y", None, "–", None)])
    assert numeric_columns(table)[:2] == [False, True]
    assert numeric_columns(Table(("a",), [("12.5 %",), ("+3 %",)])) == [True]


def test_a_column_without_a_word_is_not_drawn() -> None:
    from rich.console import Console

    table = Table(("stage", "figure", "note"), [("encode", None, ""), ("decode", None, "")])
    out = io.StringIO()
    Console(file=out, width=100).print(draw(Document("t", (), [Section("s", [table])])))
    shown = page(Document("t", (), [Section("s", [table])]))
    for text in (out.getvalue(), shown):
        assert "note" not in text
        assert "figure" in text  # not known is said with a dash
        assert "–" in text
    told = Table(table.columns, [("encode", None, ""), ("decode", None, "late")])
    assert "note" in page(Document("t", (), [Section("s", [told])]))
    assert "note" in page(Document("t", (), [Section("s", [Table(table.columns, [])])]))


def test_a_command_is_never_broken() -> None:
    from rich.console import Console

    line = "has search " + " ".join(f"--workload 'results/my run/{n}.yaml'" for n in range(12))
    whole = Document("t", (), [Section("s", [Command(line)])])
    out = io.StringIO()
    Console(file=out, width=60).print(draw(whole), crop=False)
    assert line in out.getvalue().splitlines()
    assert f"<pre>{escape(line)}</pre>" in page(whole)


def test_what_a_sentence_of_the_answer_is_of_stands_out() -> None:
    text = page(Document("t", ["Why: decode binds it", "no label here", f"{'long ' * 10}: no label either"]))
    assert "<p><b>Why:</b> decode binds it</p>" in text
    assert text.count("<b>") == 1


def test_a_percent_sign_stays_with_its_number() -> None:
    text = page(Document("t", ["Why: 60.0 % miss it"], [Section("s", ["of these 3 % fail"])]))
    assert "<p><b>Why:</b> 60.0\u00a0% miss it</p>" in text
    assert "<p>of these 3\u00a0% fail</p>" in text


def test_two_columns_leave_out_what_is_not_known() -> None:
    assert two_columns([("a", 1), ("b", None)]).rows == [("a", 1)]


HOSTILE = '<script>alert("x")</script>&'


def full() -> Document:
    return Document(
        HOSTILE,
        [HOSTILE],
        [
            Section(HOSTILE, [HOSTILE, Table((HOSTILE, "n"), [(HOSTILE, 1.0)], HOSTILE)]),
            Section(
                "bars", [Bars([(HOSTILE, 0.5, HOSTILE), ("over", 7.0, ""), ("none", -1.0, "")], HOSTILE)]
            ),
        ],
    )


def test_a_page_is_whole_self_contained_and_escaped() -> None:
    text = page(full(), footer=HOSTILE)
    checked = Checked(text)
    names = [tag for tag, _ in checked.tags]
    assert not {"script", "link", "img", "iframe"} & set(names)
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert text.count("&lt;script&gt;") >= 8
    assert ("html", {"lang": "en"}) in checked.tags
    assert any(attributes.get("name") == "viewport" for tag, attributes in checked.tags if tag == "meta")
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in checked.tags if tag == "th")
    # wide tables scroll in their own box, which the keyboard can reach; the page itself does not
    assert names.count("table") == sum(attributes.get("class") == "wide" for _, attributes in checked.tags)


def test_bars_stay_within_their_track() -> None:
    text = page(full())
    assert "width:50.0%" in text
    assert "width:100.0%" in text
    assert "width:0.0%" in text


def test_the_terminal_shows_brackets_as_they_are() -> None:
    from rich.console import Console

    out = io.StringIO()
    words = "[red]not markup[/red] [1, 2]"
    Console(file=out, width=100).print(
        draw(Document(words, [words], [Section(words, [Table((words,), [(words,)])])]))
    )
    assert out.getvalue().count(words) == 5
