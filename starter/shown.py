"""Texts from outside on an operator's terminal: control characters are shown, never obeyed."""

import re

# C0 and C1 (ECMA-48), line separators, what turns the direction of text (Unicode annex 9), and halves of pairs
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    r"""The text with each control character, line breaks too, as `\u001b` and the like: in JSON that is the same."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown_lines(text: str) -> str:
    """The same for a text whose line breaks are ours."""
    return "\n".join(map(shown, text.split("\n")))
