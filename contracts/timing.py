"""Every time that must fit with the others, and the one relation between them."""

from dataclasses import dataclass
from itertools import pairwise

# of the workflow's retries (workflows/activity_options.py): the same for every deployment, since histories hold it
LONGEST_BACKOFF = 2.0


@dataclass(frozen=True)
class Timing:
    """Times in seconds.

    The database's must grow from the chunk's target to the server's `deadlock_timeout`: then a chunk that meets a
    user's transaction gives way before PostgreSQL chooses a victim. `suspect_after` must be longer than the longest
    silence of a healthy job. `trouble_budget`: for how long chunks of a range may meet nothing but database trouble
    before the job fails.
    """

    chunk_target: float = 0.1
    statement_timeout: float = 0.6
    transaction_timeout: float = 0.8
    deadlock_timeout: float = 1.0
    heartbeat_timeout: float = 3.0
    heartbeat_throttle: float = 0.3
    sticky_timeout: float = 1.0
    workflow_task_timeout: float = 5.0
    longest_backoff: float = LONGEST_BACKOFF
    suspect_after: float = 15.0
    segment: float = 5.0
    deliver: float = 300.0
    control_interval: float = 0.5
    shift_statement_timeout: float = 20.0
    freeze_statement_timeout: float = 600.0
    trouble_budget: float = 3600.0

    def violations(self) -> list[str]:
        """A sentence for each part of the relation that doesn't hold, naming both values; empty where all fit."""
        return [
            f"{low} ({_seconds(low_value)}) must be shorter than {high} ({_seconds(high_value)})"
            for (low, low_value), (high, high_value) in self._pairs()
            if not low_value < high_value
        ] + [f"{name} must be positive, not {_seconds(value)}" for name, value in vars(self).items() if not value > 0]

    def _pairs(self) -> list[tuple[tuple[str, float], tuple[str, float]]]:
        chain = ("chunk_target", "statement_timeout", "transaction_timeout", "deadlock_timeout")
        silence = ("sticky_timeout", "workflow_task_timeout", "heartbeat_timeout", "longest_backoff")
        named = [(name, float(getattr(self, name))) for name in chain]
        return [
            *pairwise(named),
            (named[2], ("heartbeat_timeout", self.heartbeat_timeout)),
            (("heartbeat_throttle", self.heartbeat_throttle), ("heartbeat_timeout", self.heartbeat_timeout)),
            (
                (" + ".join(silence), sum(float(getattr(self, name)) for name in silence)),
                ("suspect_after", self.suspect_after),
            ),
        ]


class TimingError(ValueError):
    """The times don't fit; the message names each offending pair."""


def check_timing(timing: Timing) -> None:
    """Raise TimingError where the relation doesn't hold."""
    violations = timing.violations()
    if violations:
        raise TimingError("these times don't fit together: " + "; ".join(violations))


def _seconds(value: float) -> str:
    return f"{value:g} s"
