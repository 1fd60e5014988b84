"""Paired rounds: every contender runs once a round, and is compared with the others of its round."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
console = Console(width=120)


CLOSE_TO_BARE = 0.95


@dataclass(frozen=True)
class Goal:
    """What is asked for: `value` was measured, `goal` is the least that counts as met."""

    name: str
    value: float
    goal: float

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.value >= self.goal


@dataclass(frozen=True)
class RatioGoal(Goal):
    """A ratio which a shared machine's noise moves: nearly as fast as the bare statement of the same rounds will do."""

    of_bare: float

    @property
    def met(self) -> bool:
        """Whether it is."""
        return super().met or self.of_bare >= CLOSE_TO_BARE


@dataclass(frozen=True)
class Ceiling(Goal):
    """A goal where `goal` is the most that counts as met."""

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.value <= self.goal


class Rounds:
    """Rates (per second) by contender and round."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}

    def run(self, contenders: Mapping[str, Callable[[], float]], rounds: int) -> None:
        """Run each contender once a round; each returns its rate."""
        for number in range(rounds):
            # the order turns, so that none always runs on a warm or a tired machine
            names = list(contenders)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                rate = contenders[name]()
                self.rates.setdefault(name, []).append(rate)
                console.print(f"round {number + 1}  {name}: {rate:,.0f}/s")

    def ratio(self, name: str, to: str) -> float:
        """The median over the rounds of a contender's rate by another's."""
        return statistics.median(self.ratios(name, to))

    def ratios(self, name: str, to: str) -> list[float]:
        """The same for each round."""
        return [one / other for one, other in zip(self.rates[name], self.rates[to], strict=True)]


def report(name: str, rounds: Rounds, base: str, goals: Sequence[Goal], facts: Mapping[str, Any]) -> bool:
    """Print the table and write `results/<name>.json`; whether every goal is met."""
    table = Table("contender", "rate/s (median)", "to the base (median)", "spread", title=name)
    rows = {}
    for contender, rates in rounds.rates.items():
        ratios = rounds.ratios(contender, base)
        rows[contender] = {"rates": rates, "ratios": ratios, "median_ratio": statistics.median(ratios)}
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        table.add_row(contender, f"{statistics.median(rates):,.0f}", f"{statistics.median(ratios):.2f}", spread)
    console.print(table)
    for goal in goals:
        console.print(f"goal {goal.name}: {goal.value:.2f}, asked {goal.goal:.2f}: {'met' if goal.met else 'NOT MET'}")
    RESULTS.mkdir(exist_ok=True)
    written = {
        "base": base,
        "contenders": rows,
        "goals": [asdict(goal) | {"met": goal.met} for goal in goals],
        "facts": dict(facts),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(written, indent=2) + "\n")
    return all(goal.met for goal in goals)
