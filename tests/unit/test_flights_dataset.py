"""The flights as the CSV has them, and the one rule that turns New York's local time into instants."""

from collections import Counter
from datetime import UTC, datetime

import pytest

from examples.flights.dataset import Flight, departure_instant, read_flights


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return list(read_flights())


def test_every_flight_is_read_once(flights: list[Flight]) -> None:
    assert [flight.flight_id for flight in flights] == list(range(1, 336_777))


def test_carriers_have_their_known_sizes(flights: list[Flight]) -> None:
    sizes = Counter(flight.carrier for flight in flights)
    assert (sizes["UA"], sizes["OO"], len(sizes)) == (58_665, 32, 16)


def test_one_carrier_is_the_same_flights_as_picked_from_all(flights: list[Flight]) -> None:
    assert list(read_flights("OO")) == [flight for flight in flights if flight.carrier == "OO"]


def test_an_unknown_carrier_has_no_flights() -> None:
    assert list(read_flights("ZZ")) == []


def test_a_row_keeps_its_types(flights: list[Flight]) -> None:
    first = flights[0]
    assert first.scheduled_departure.astimezone(UTC) == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    assert (first.carrier, first.flight_number, first.tail_number) == ("UA", 1545, "N14228")
    assert (first.origin, first.destination, first.distance_miles) == ("EWR", "IAH", 1400)


def test_an_empty_tail_number_is_none(flights: list[Flight]) -> None:
    assert sum(flight.tail_number is None for flight in flights) == 2_512
    assert all(flight.tail_number != "" for flight in flights)


@pytest.mark.parametrize(
    ("local", "instant"),
    [
        pytest.param("2013-01-01T05:15", datetime(2013, 1, 1, 10, 15, tzinfo=UTC), id="winter"),
        pytest.param("2013-07-01T05:15", datetime(2013, 7, 1, 9, 15, tzinfo=UTC), id="summer"),
        pytest.param("2013-11-03T01:30", datetime(2013, 11, 3, 5, 30, tzinfo=UTC), id="occurs twice: the first"),
        pytest.param("2013-03-10T02:30", datetime(2013, 3, 10, 7, 30, tzinfo=UTC), id="skipped: counts on"),
    ],
)
def test_local_time_becomes_an_instant(local: str, instant: datetime) -> None:
    assert departure_instant(local).astimezone(UTC) == instant


def test_no_flight_of_the_data_needs_the_rule(flights: list[Flight]) -> None:
    departures = [flight.scheduled_departure for flight in flights]
    assert all(departure.utcoffset() == departure.replace(fold=1).utcoffset() for departure in departures)
