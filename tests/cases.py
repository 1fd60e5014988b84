"""`make cases`: runs the tests that carry a case of the public failure reports, and those that are marked slow.

Prints a line for each case; a slow test without a case stands under its own name. Most of the time is waiting, so
more processes run than there are cores; those marked `alone` come afterwards, in one.
"""

import sys
from collections import defaultdict

import pytest

SELECTION = "tests.support.case_selection"
PROCESSES = 3


class CaseReport:
    """Collects the outcome of each test by the cases that it carries."""

    def __init__(self) -> None:
        self.tests: dict[str, list[tuple[str, bool]]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a test: its call, or a set-up or clean-up that failed."""
        if report.when == "call" or report.failed or report.skipped:
            for name, value in report.user_properties:
                if name == "case":
                    self.tests[str(value)].append((report.nodeid, report.passed))

    def lines(self) -> list[str]:
        """One line a case: number, holds or not, which test."""
        return [
            f"{number}  {'holds    ' if all(passed for _, passed in found) else 'FAILS    '}  "
            + ", ".join(sorted({name for name, _ in found}))
            for number, found in sorted(self.tests.items(), key=lambda one: _order(one[0]))
        ]


def _order(number: str) -> tuple[int, str]:
    digits = number[1:]
    return (int(digits), number) if digits.isdecimal() else (1000, number)


def main() -> int:
    """Run them; the worst of pytest's exit codes, but no case at all is no failure."""
    report = CaseReport()
    codes = [_run(report, "not alone", f"-n{PROCESSES}"), _run(report, "alone", "-n0")]
    sys.stdout.write("\n".join(["", *report.lines(), ""]))
    return max(0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code) for code in codes)


def _run(report: CaseReport, marked: str, processes: str) -> int:
    options = ["-q", "--timeout=900", "-p", SELECTION, "-m", marked, processes, "--dist=loadfile"]
    return pytest.main([*options, *sys.argv[1:]], plugins=[report])


if __name__ == "__main__":
    sys.exit(main())
