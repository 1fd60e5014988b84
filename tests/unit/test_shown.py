"""What comes from outside never steers an operator's terminal."""

import json
from io import StringIO

import pytest

from bulklane.starter import show
from bulklane.starter.shown import shown, shown_lines
from bulklane.starter.terminal import Terminal
from bulklane.starter.verify import Check, Report

# clears the screen; sets the title; the same with one character of C1; a line of its own; text turned round
NASTY = "\x1b[2J\x1b]0;owned\x07\x9b2J\x7f\r\nfaked\u202eenod\u2028"
KEPT = "Zoë 日本 👩‍👩‍👧 \\ [bold]done[/bold]"


def harmless(text: str) -> bool:
    return not set(text) & set("\x1b\x07\x9b\x7f\r\u202e\u2028")


def test_control_characters_are_shown_and_other_texts_are_left() -> None:
    assert shown("\x1b[31m\n") == r"\u001b[31m\u000a"
    assert shown(KEPT) == KEPT
    assert (shown_lines("a\n\x1b"), harmless(shown(NASTY)), "\n" in shown(NASTY)) == ("a\n" + r"\u001b", True, False)


def test_a_line_on_the_console_stays_one_and_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    console = show.make_console()
    console.print(f"refused: {NASTY}{KEPT}")
    console.print(show.as_json({"answer": NASTY + KEPT}))
    line, told, end = capsys.readouterr().out.split("\n")
    assert (harmless(line + told), KEPT in line, end) == (True, True, "")
    assert json.loads(told) == {"answer": NASTY + KEPT}


def test_a_balance_shows_them_in_its_table() -> None:
    out = StringIO()
    report = Report("job", (Check(NASTY, NASTY, NASTY, False, NASTY),))
    show.print_report(Terminal(file=out, width=300), report)
    assert (harmless(out.getvalue()), r"\u001b[2J" in out.getvalue()) == (True, True)
