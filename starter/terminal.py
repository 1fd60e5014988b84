"""The console of the command line."""

from typing import Any

from rich.console import Console
from rich.text import Text

from bulklane.starter.shown import shown


class Terminal(Console):
    """Plain strings are `shown`, a line each. What goes into it as Text, as in tables, must be so before."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The string without its control characters."""
        return super().render_str(shown(text), **options)
