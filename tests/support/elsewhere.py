"""Another team's module: it doesn't know the operations of `counting`, but works on the same records."""

from collections.abc import Sequence

from tests.support.counting import FAMILY, CountParameters, CountUp


class Recount(CountUp):
    """Of a family of its own, and names the resource of `counting`."""

    name = "recount"
    family = "recounting"
    effects = ()

    def resources(self, tenant: str, parameters: CountParameters) -> Sequence[str]:
        """Its own family's, and the other's."""
        return [f"recounting:{tenant}", f"{FAMILY}:{tenant}"]


MODULE = "tests.support.elsewhere"
OPERATIONS = [Recount()]
