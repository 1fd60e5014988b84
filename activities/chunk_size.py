"""How many records the next chunk takes: from how long the last ones took, and from what went wrong."""

from bulklane.database.range import LARGEST_CHUNK, largest_after

SMALLEST = 1
SMALLEST_BY_TIME = 100
GROWTH = 2.0
GROWTH_BACK = 4.0
REMNANT = 1.25


class ChunkSize:
    """Adapts to a target duration in seconds: between 100 and 5,000 records by time alone.

    A statement timeout or a worker's death makes it smaller, down to 1. A bad record is narrowed down by bisection;
    from there it grows back, fast at first.
    """

    def __init__(self, target: float, records: int) -> None:
        self._target = target
        self._records = float(max(SMALLEST, min(LARGEST_CHUNK, records)))
        self._before = 0.0
        self._suspects = 0

    @property
    def records(self) -> int:
        """How many records a chunk takes at the most, where nothing is suspected."""
        return max(SMALLEST, int(self._records))

    def after(self, deaths: int) -> int:
        """The same at a place where so many workers have died; half of those among which a bad record stands."""
        half = (self._suspects + 1) // 2 if self._suspects else self.records
        return min(self.records, half, largest_after(deaths))

    def of(self, ahead: int, deaths: int) -> int:
        """How many of the records ahead the next chunk takes: rather some more than a remnant that is a chunk too."""
        size = self.after(deaths)
        most = size if self._suspects or deaths else size * REMNANT
        return ahead if ahead <= most else size

    def took(self, records: int, seconds: float) -> None:
        """A chunk of that many records took that long."""
        if self._suspects:
            self._suspects = max(0, self._suspects - records)
            return
        if records < self.records and seconds < self._target:
            return
        fitting = records * self._target / max(seconds, 0.001)
        # where a commit alone takes the target's time, smaller chunks only make it worse
        growth = GROWTH_BACK if records < self._before else GROWTH
        slowest = min(float(SMALLEST_BY_TIME), records * growth)
        self._records = max(slowest, min(float(LARGEST_CHUNK), fitting, records * growth))

    def halve(self, records: int) -> None:
        """A chunk of that many records was too much."""
        self._before = 0.0
        self._records = float(max(SMALLEST, records // 2))

    def bisect(self, records: int) -> None:
        """Among the next so many records stands a bad one."""
        self._before = max(self._before, self._records)
        self._suspects = records

    def found(self) -> None:
        """The bad record stood alone and is passed; where there is one there may be more."""
        self._suspects = 0
        self._records = float(SMALLEST)
