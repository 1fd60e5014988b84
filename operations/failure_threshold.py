"""How many failed records a job bears before it ends."""

from dataclasses import dataclass

from bulklane.operations.operation import OperationError


@dataclass(frozen=True)
class FailureThreshold:
    """A round with more failed records than this ends as failed; what it has not started stays for a `retry`.

    `most_failures`: so many are borne. `most_share`: so large a part of the records seen so far, once there are
    `seen` of them. Each counts where it is set.
    """

    most_failures: int | None = None
    most_share: float | None = None
    seen: int = 1000

    def __post_init__(self) -> None:
        if self.most_failures is None and self.most_share is None:
            raise OperationError("a FailureThreshold needs most_failures, most_share or both")
        if self.most_failures is not None and not _whole(self.most_failures, 0):
            raise OperationError(f"most_failures is a number of records, not {self.most_failures!r}")
        if self.most_share is not None and not _part_of_one(self.most_share):
            raise OperationError(f"most_share is a part of 1 (0.05: one in twenty), not {self.most_share!r}")
        if not _whole(self.seen, 1):
            raise OperationError(f"seen is at least 1 record, not {self.seen!r}")

    def exceeded(self, failed: int, processed: int) -> str:
        """Why a round with these counters ends; empty where it goes on."""
        if self.most_failures is not None and failed > self.most_failures:
            return f"{failed} of {processed} records failed, more than {self.most_failures}"
        if self.most_share is not None and processed >= self.seen and failed > self.most_share * processed:
            return f"{failed} of {processed} records failed, more than {self.most_share:.4g} of them"
        return ""


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _part_of_one(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
