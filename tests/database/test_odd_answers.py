"""What a provider says is stored, whatever it says: no answer keeps its own or its neighbours' settlement back."""

import pytest
from sqlalchemy import Engine

from bulklane.database import hold
from bulklane.operations.sender import Answer, Done, Held, Refused, Unknown
from tests.database.jobs import rows
from tests.database.test_call_delivery import STATES, ScriptedProvider, deliver, owing

ODD = "no\x00 \ud800 \x1b[2J"


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        pytest.param(Refused(ODD, ODD), "refused", id="a refusal with NUL and half a surrogate pair"),
        pytest.param(Done(ODD, ODD), "done", id="done with the same"),
        pytest.param(Unknown(ODD), "unknown", id="unknown with the same"),
        pytest.param(Held(ODD), "later", id="held with the same"),
        pytest.param(Refused(4711, None), "refused", id="a code that is a number, as JSON has it"),  # type: ignore[arg-type]
        pytest.param(Refused("x" * 100_000, "y" * 100_000), "refused", id="very long"),
    ],
)
def test_an_odd_answer_is_settled_and_takes_no_neighbour_with_it(engine: Engine, answer: Answer, state: str) -> None:
    job = owing(engine, 2)

    deliver(engine, job, ScriptedProvider([answer, Done("201")]), concurrency=2)

    found = dict(rows(engine, STATES))
    # what one is held for, no other is sent to
    assert found == ({state: 2} if state in ("done", "later") else {state: 1, "done": 1})


def test_an_odd_reason_holds_the_channel_too(engine: Engine) -> None:
    with engine.begin() as connection:
        assert hold.hold(connection, "bookings", ODD)
    assert rows(engine, "SELECT held_why FROM bulklane.channel_limit WHERE channel = 'bookings'") == [("no ? \x1b[2J",)]
