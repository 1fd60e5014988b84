"""`make cases`: runs the tests that carry a case of the public failure reports, and those that are marked slow.

Prints a line for each case; a slow test without a case stands under its own name.
"""

import sys
from collections import defaultdict

import pytest


class CaseReport:
    """Collects the outcome of each test by the cases that it carries."""

    def __init__(self) -> None:
        self.tests: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        self._cases: dict[str, list[str]] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests that carry a case, and the slow ones."""
        self._cases = {item.nodeid: _cases_of(item) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not self._cases[item.nodeid]])
        items[:] = [item for item in items if self._cases[item.nodeid]]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a test: its call, or a set-up or clean-up that failed."""
        if report.when == "call" or report.failed or report.skipped:
            for number in self._cases.get(report.nodeid, []):
                self.tests[number].append((report.nodeid, report.passed))

    def lines(self) -> list[str]:
        """One line a case: number, holds or not, which test."""
        return [
            f"{number}  {'holds    ' if all(passed for _, passed in found) else 'FAILS    '}  "
            + ", ".join(sorted({name for name, _ in found}))
            for number, found in sorted(self.tests.items(), key=lambda one: _order(one[0]))
        ]


def _cases_of(item: pytest.Item) -> list[str]:
    if item.get_closest_marker("chaos"):
        return []
    cases = [str(number) for mark in item.iter_markers("case") for number in mark.args]
    if not cases and item.get_closest_marker("slow"):
        return [item.path.stem.removeprefix("test_")]
    return cases


def _order(number: str) -> tuple[int, str]:
    digits = number[1:]
    return (int(digits), number) if digits.isdecimal() else (1000, number)


def main() -> int:
    """Run them; pytest's exit code, but no case at all is no failure."""
    report = CaseReport()
    code = pytest.main(["-q", "--timeout=900", *sys.argv[1:]], plugins=[report])
    sys.stdout.write("\n".join(["", *report.lines(), ""]))
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main())
