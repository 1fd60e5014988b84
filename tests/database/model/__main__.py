"""`make lease-model`: so many steps of the machine, and every mutant found. Exits with 1 on a violation."""

import argparse
import sys
import time
from collections import Counter

import pytest

from tests.database.model.machine import LeaseModel
from tests.database.model.mutants import MUTANTS
from tests.database.model.run import EXAMPLES_OF_A_SEED, explore, finds, model_on
from tests.support.databases import fresh_database, make_template, running_postgres


def main() -> int:
    """Explore, seed after seed; then break the product in every known way."""
    parser = argparse.ArgumentParser(prog="python -m tests.database.model", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="the first one; the others follow")
    parser.add_argument("--mutants", action="store_true", help="only look for the mutants")
    arguments = parser.parse_args()
    with running_postgres() as server:
        make_template(server.url)
        with fresh_database(server.url) as url, model_on(url) as model:
            holds = arguments.mutants or _explore(model, arguments.seed, arguments.steps)
            return 0 if holds and _find_mutants(model) else 1


def _explore(model: type[LeaseModel], first: int, steps: int) -> bool:
    began, number, holds = time.monotonic(), first, True
    try:
        while model.drawn() < steps:
            explore(model, number, EXAMPLES_OF_A_SEED, shrink=False)
            number += 1
            _say(f"{model.drawn()} steps")
    except Exception as error:
        holds = False
        _show(number, error)
        _shrink(model, number)
    _say("steps:", *_table(model.steps), "", "states reached, and runs that ended early:", *_table(model.reached), "")
    seeds = f"seeds {first} to {number - 1 if holds else number}"
    verdict = "every invariant held" if holds else "VIOLATION, see above"
    ends = model.steps.total() - model.drawn()
    _say(
        f"{model.drawn()} steps and {ends} to end the examples, {seeds}, {time.monotonic() - began:.0f} s: {verdict}",
        "",
    )
    return holds


def _show(number: int, error: Exception) -> None:
    _say(f"VIOLATION with seed {number}: {type(error).__name__}: {error}", *getattr(error, "__notes__", []))


def _shrink(model: type[LeaseModel], number: int) -> None:
    _say("", "Looking for a shorter sequence, for up to five minutes.", "")
    try:
        explore(model, number, EXAMPLES_OF_A_SEED)
    except Exception as error:
        _show(number, error)


def _find_mutants(model: type[LeaseModel]) -> bool:
    began, missed = time.monotonic(), 0
    for name, mutant in MUTANTS.items():
        found = finds(model, mutant, pytest.MonkeyPatch())
        missed += found is None
        _say(f"{name}: " + ("NOT FOUND" if found is None else f"found after {found[0]} steps: {found[1]}"))
    _say(f"{len(MUTANTS) - missed} of {len(MUTANTS)} mutants found, {time.monotonic() - began:.0f} s")
    return missed == 0


def _table(counted: Counter[str]) -> list[str]:
    return [f"{times:7}  {name}" for name, times in counted.most_common()]


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
