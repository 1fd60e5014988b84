"""Which process of pytest-xdist runs what: a whole local stack is started by as few of them as time allows.

`pytest -n 2 --dist loadfile`: files are dealt out whole. A process stays with the stack that it has started,
then takes one that nobody has, then files that need none; only then does it start a stack that another process has too.
"""

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ACCEPTANCE = ("tests", "acceptance")
# those first that take longest; the others follow as they are found
LONGEST = ("tests/acceptance/ownership", "tests/acceptance")


def stack_of_file(path: str) -> str | None:
    """The folder whose stack a file's tests use; None for those that start no more than a server."""
    folder = PurePosixPath(path).parent
    return str(folder) if folder.parts[:2] == ACCEPTANCE else None


class ByStack(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out files."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._stacks: dict[WorkerController, str | None] = {}

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = next_file(list(self.workqueue), self._stacks.get(node), set(self._stacks.values()))
        self._stacks[node] = stack_of_file(scope) or self._stacks.get(node)
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def next_file(files: Sequence[str], own: str | None, taken: Collection[str | None]) -> str:
    """The one that costs a process least: `own` is the stack that it has, `taken` are those that any process has."""

    def cost(path: str) -> tuple[int, int]:
        stack = stack_of_file(path)
        longest = LONGEST.index(stack) if stack in LONGEST else len(LONGEST)
        if stack is None:
            return 2, 0
        return (0 if stack == own else 3 if stack in taken else 1), longest

    return min(files, key=cost)
