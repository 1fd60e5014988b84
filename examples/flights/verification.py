"""What `bulklane verify` compares a job of the flights example with: CSV, audit trigger, provider's ledger."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from sqlalchemy import Select, Text, cast, select

from examples.flights.dataset import Flight, read_flights
from examples.flights.tables import flight_audit

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one is not None and one == other,
    "!=": lambda one, other: one is not None and one != other,
    "<": lambda one, other: one is not None and one < other,
    "<=": lambda one, other: one is not None and one <= other,
    ">": lambda one, other: one is not None and one > other,
    ">=": lambda one, other: one is not None and one >= other,
    "in": lambda one, other: one is not None and one in other,
    "is_null": lambda one, other: (one is None) is other,
}


class FlightsVerification:
    """The readers."""

    def expected(self, tenant: str, kind: str, spec: Mapping[str, Any]) -> set[str] | None:
        """The flights of the CSV that the selection means; None for ids, their own input, and for a search."""
        if kind in ("ids", "search"):
            return None
        return {str(flight.flight_id) for flight in read_flights(tenant) if kind == "all" or matches(flight, spec)}

    def audit(self, tenant: str) -> Select[Any]:
        """What the example's own trigger has noted."""
        return select(
            cast(flight_audit.c.flight_id, Text).label("key"),
            flight_audit.c.changed_at,
            flight_audit.c.transaction_id,
        ).where(flight_audit.c.carrier == tenant)

    def applications(self, channel: str, endpoint_url: str, key_prefix: str) -> Mapping[str, int]:
        """The provider's ledger."""
        del channel
        applied = {}
        with httpx.stream("GET", f"{endpoint_url}/ledger", params={"prefix": key_prefix}, timeout=60) as lines:
            lines.raise_for_status()
            for line in lines.iter_lines():
                entry = json.loads(line)
                applied[entry["key"]] = entry["applied"]
        return applied


def matches(flight: Flight, spec: Mapping[str, Any]) -> bool:
    """Whether a filter selects a flight of the CSV; written again here, so that it is checked against another hand."""
    if "and" in spec:
        return all(matches(flight, part) for part in spec["and"])
    if "or" in spec:
        return any(matches(flight, part) for part in spec["or"])
    if "not" in spec:
        return not matches(flight, spec["not"])
    return bool(_COMPARISONS[spec.get("op", "=")](getattr(flight, spec["field"]), spec.get("value")))
