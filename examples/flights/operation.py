"""The operation of the flights example: move the departure of the selected flights, index them, tell the passengers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Update, update

from bulklane import (
    CallEffect,
    Channel,
    Done,
    HttpProvider,
    HttpSample,
    IndexEffect,
    Operation,
    Records,
    Refused,
    Reply,
    SearchIndex,
)
from examples.flights.development import FLIGHTS
from examples.flights.tables import flights
from examples.flights.verification import FlightsVerification


@dataclass(frozen=True)
class RescheduleParameters:
    """By how many minutes the departures move; negative: earlier."""

    minutes: Annotated[int, Field(ge=-1440, le=1440)]


class RescheduleFlights(Operation):
    """Moves the scheduled departure of flights. Not idempotent on purpose: a record changed twice shows."""

    name = "reschedule_flights"
    parameters = RescheduleParameters
    records = Records(
        table=flights, key=[flights.c.flight_id], tenant=flights.c.carrier, row_version=flights.c.row_version
    )
    fields = {name: flights.c[name] for name in ("flight_id", "flight_number", "tail_number", "origin", "destination")}
    effects = (
        IndexEffect(
            "document",
            channel="flights_index",
            document={
                name: flights.c[name]
                for name in ("carrier", "flight_number", "origin", "destination", "scheduled_departure")
            },
        ),
        CallEffect(
            "notice",
            channel="notices",
            body={
                "record": flights.c.flight_id,
                "carrier": flights.c.carrier,
                "flight_number": flights.c.flight_number,
                "departure": flights.c.scheduled_departure,
            },
        ),
    )
    parallelism = 2
    verification = FlightsVerification()

    def change(self, parameters: RescheduleParameters) -> Update:
        """One statement; Bulklane narrows it to a chunk."""
        moved = flights.c.scheduled_departure + timedelta(minutes=parameters.minutes)
        return update(flights).values(scheduled_departure=moved)


def judge_notice(status: int, body: Mapping[str, Any]) -> Done | Refused | None:
    """The provider says what it did in the body: a 200 alone is no success."""
    if status in (200, 201) and body.get("status") == "sent":
        return Done(str(status), str(body.get("notice", "")))
    if body.get("status") == "error" and status < 500:
        return Refused(str(body.get("code", status)), "the provider refused the notice")
    return None


def judge_look_up(status: int, body: Mapping[str, Any]) -> Done | Refused | None:
    """Applied, or a failure that the provider has stored under the key."""
    del status
    if body.get("status") == "applied":
        return Done("look-up")
    return Refused("not_applied", "the provider has stored a failure") if body.get("status") == "not_applied" else None


DEVELOPMENT = FLIGHTS
OPERATIONS = [RescheduleFlights()]
CHANNELS = [
    Channel("flights_index", SearchIndex(alias="flights")),
    Channel(
        "notices",
        HttpProvider(
            path="/notices",
            judge=judge_notice,
            look_up_path="/notices/by-key/{key}",
            judge_look_up=judge_look_up,
        ),
        concurrency=20,
        stores_refusals=True,
        sample=HttpSample(
            ok=Reply(201, '{"status":"sent","notice":1}'),
            error=Reply(200, '{"status":"error","code":"no_seat"}'),
            known=Reply(200, '{"status":"applied","applied":1}'),
        ),
    ),
]
