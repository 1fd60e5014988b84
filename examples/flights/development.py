"""What the flights example needs on a developer's machine: its data, its index, and its provider."""

import sys
from pathlib import Path

from bulklane.operations.development import Development, DevelopmentService
from bulklane.operations.senders.index_reader import create_index
from examples.flights.dataset import load

PROPERTIES = {
    "carrier": {"type": "keyword"},
    "flight_number": {"type": "integer"},
    "origin": {"type": "keyword"},
    "destination": {"type": "keyword"},
    "scheduled_departure": {"type": "date"},
}


def prepare(database_url: str, opensearch_url: str) -> None:
    """Load the flights and make their index; again it does nothing."""
    load(database_url)
    create_index(opensearch_url, "flights", PROPERTIES)


def provider_command(port: int, folder: Path) -> list[str]:
    """The notice provider, with its ledger in the folder."""
    data = str(folder / "provider.sqlite")
    return [sys.executable, "-m", "examples.flights.provider", "--port", str(port), "--data", data]


FLIGHTS = Development(
    prepare=prepare,
    services=[DevelopmentService("provider", "notices", provider_command)],
    index_channels=["flights_index"],
)
