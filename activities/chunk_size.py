"""How many records the next chunk takes: from how long the last ones took, and from what went wrong."""

SMALLEST = 1
LARGEST = 5000
SMALLEST_BY_TIME = 100
START_AFTER_DEATH = 6
GROWTH = 2.0


class ChunkSize:
    """Adapts to a target duration in seconds: between 100 and 5,000 records by time alone.

    A bad record, a statement timeout or a worker's death makes it smaller, down to 1; it grows back step by step.
    """

    def __init__(self, target: float, records: int, *, deaths: int = 0) -> None:
        self._target = target
        self._records = float(max(SMALLEST, min(LARGEST, records)))
        # each death of a worker at this place makes the chunk six times smaller: after five the record stands alone
        self._cap = LARGEST if deaths == 0 else max(SMALLEST, LARGEST // START_AFTER_DEATH**deaths)

    @property
    def records(self) -> int:
        """How many records the next chunk takes at the most."""
        return max(SMALLEST, min(int(self._records), self._cap))

    def took(self, records: int, seconds: float) -> None:
        """A chunk of that many records took that long."""
        self._cap = LARGEST
        if records < self.records and seconds < self._target:
            return
        fitting = records * self._target / max(seconds, 0.001)
        # where a commit alone takes the target's time, smaller chunks only make it worse
        slowest = min(float(SMALLEST_BY_TIME), records * GROWTH)
        self._records = max(slowest, min(float(LARGEST), fitting, records * GROWTH))

    def halve(self, records: int) -> None:
        """A chunk of that many records was too much."""
        self._records = float(max(SMALLEST, records // 2))
