"""What the index commands show: a line that moves while they work, and what a comparison came to."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bulklane.starter.comparison import Comparison, Kind
from bulklane.starter.terminal import Terminal

EXAMPLES = 5
MEANING = {
    Kind.MISSING: "rows without a document",
    Kind.STALE: "documents older than their row",
    Kind.AHEAD: "documents newer than their row, which was restored or made anew: reindex, or raise its row version",
    Kind.HIDDEN: "rows made anew behind a `deleted` document of a later version",
    Kind.ORPHAN: "documents without a row",
    Kind.REFUSED: "rows whose document the index refuses",
}


class Bar:
    """A moving line on standard error; lines for people stand above it."""

    def __init__(self) -> None:
        self._console = Terminal(stderr=True, highlight=False, markup=False, soft_wrap=True)
        columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:,.0f} rows", markup=False))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
        self._task = self._progress.add_task("begins", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, what: str, done: int) -> None:
        """What is done now, and how far it is."""
        self._progress.update(self._task, description=what, completed=done)

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(line)


def comparison_lines(compared: Comparison) -> Iterator[str]:
    """A line for the whole, and one for each kind of difference with some keys."""
    yield f"{compared.rows:,} rows, {compared.documents:,} documents"
    for kind, count in compared.repaired.items():
        yield f"repaired: {count:,} {kind} ({MEANING[kind]})"
    for kind, count in compared.left.items():
        if count:
            yield f"{kind}: {count:,} ({MEANING[kind]}): {', '.join(_examples(compared, kind))}"
    yield "equal" if compared.equal else f"{sum(compared.left.values()):,} differ"


def _examples(compared: Comparison, kind: Kind) -> list[str]:
    mine = [(one, why) for of_kind, one, why in compared.kept if of_kind is kind]
    told = [f"{one.tenant}/{one.key}{f' ({why})' if why else ''}" for one, why in mine[:EXAMPLES]]
    return [*told, *(["..."] if len(mine) > EXAMPLES else [])]


def comparison_json(compared: Comparison) -> dict[str, Any]:
    """A comparison as JSON values; at most a thousand records are named."""
    return {
        "equal": compared.equal,
        "rows": compared.rows,
        "documents": compared.documents,
        "repaired": {str(kind): count for kind, count in compared.repaired.items()},
        "left": {str(kind): count for kind, count in compared.left.items() if count},
        "records": [
            {
                "kind": str(kind),
                "tenant": one.tenant,
                "key": one.key,
                "row": one.row,
                "document": one.version,
                "why": why,
            }
            for kind, one, why in compared.kept
        ],
    }
