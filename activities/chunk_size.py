"""How many records the next chunk takes: from how long the last ones took, and from what went wrong."""

from bulklane.database.range import LARGEST_CHUNK, largest_after

SMALLEST = 1
SMALLEST_BY_TIME = 100
GROWTH = 2.0


class ChunkSize:
    """Adapts to a target duration in seconds: between 100 and 5,000 records by time alone.

    A bad record, a statement timeout or a worker's death makes it smaller, down to 1; it grows back step by step.
    """

    def __init__(self, target: float, records: int) -> None:
        self._target = target
        self._records = float(max(SMALLEST, min(LARGEST_CHUNK, records)))

    @property
    def records(self) -> int:
        """How many records a chunk takes at the most, where nothing is suspected."""
        return max(SMALLEST, int(self._records))

    def after(self, deaths: int) -> int:
        """The same at a place where so many workers have died."""
        return min(self.records, largest_after(deaths))

    def took(self, records: int, seconds: float) -> None:
        """A chunk of that many records took that long."""
        if records < self.records and seconds < self._target:
            return
        fitting = records * self._target / max(seconds, 0.001)
        # where a commit alone takes the target's time, smaller chunks only make it worse
        slowest = min(float(SMALLEST_BY_TIME), records * GROWTH)
        self._records = max(slowest, min(float(LARGEST_CHUNK), fitting, records * GROWTH))

    def halve(self, records: int) -> None:
        """A chunk of that many records was too much."""
        self._records = float(max(SMALLEST, records // 2))
