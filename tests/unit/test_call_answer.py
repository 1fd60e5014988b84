"""What one claimed delivery is worth: a failed look-up, a bug in a sender, a call without an end."""

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from bulklane.activities.call_answer import HeldLookUp, PutOffLookUp, Unasked, Undecided, answer_of
from bulklane.database.delivery import Claim
from bulklane.operations.channel import Channel
from bulklane.operations.sender import Answer, Call, Done, Held, Later, NoLookUp, Refused, Unknown
from bulklane.operations.senders.http_provider import HttpProvider

PROVIDER = HttpProvider("/", lambda status, body: None)
FOREVER = "for ever"


@dataclass
class Sender:
    """Answers so; an exception is raised, FOREVER never comes back."""

    answer: Any = field(default_factory=Done)
    known: Any = None
    sent: int = 0

    async def send(self, call: Call) -> Answer:
        self.sent += 1
        return await _come(self.answer)  # type: ignore[no-any-return]

    async def look_up(self, call: Call) -> Answer | None:
        return await _come(self.known)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Nothing."""


async def _come(answer: Any) -> Any:
    if answer == FOREVER:
        await asyncio.Event().wait()
    if isinstance(answer, Exception):
        raise answer
    return answer


def claim(*, doubtful: bool = True, attempts: int = 2, seconds: float = 1.0, permitted: bool = False) -> Claim:
    return Claim("mail", "1", 1, uuid4(), attempts, doubtful, seconds, "{}", permitted)


def answered(sender: Sender, claimed: Claim, **channel: Any) -> Answer:
    made = Channel("own", PROVIDER, **{"call_seconds": 0.2, **channel})
    return asyncio.run(answer_of(sender, made, claimed, Call("key", "{}")))


@pytest.mark.parametrize("keeps_keys", [True, False])
@pytest.mark.parametrize("known", [Unknown("reset"), Later(1.0, "busy"), FOREVER, KeyError("a bug")], ids=str)
def test_a_look_up_that_fails_is_asked_again_and_nothing_is_sent(known: Any, keeps_keys: bool) -> None:
    sender = Sender(known=known)
    answer = answered(sender, claim(), keeps_keys=keeps_keys)
    # the provider's time is kept, and the doubt (`test_call_delivery`)
    assert (isinstance(answer, Later), sender.sent) == (isinstance(known, Later), 0)
    assert isinstance(answer, (PutOffLookUp, Unasked))
    # an outage uses up no attempts, whatever number of look-ups it sees
    assert type(answered(sender, claim(attempts=99), keeps_keys=keeps_keys)) is type(answer)
    # but not for ever
    assert isinstance(answered(sender, claim(seconds=4000.0), keeps_keys=keeps_keys), Undecided)
    assert sender.sent == 0


def test_a_look_up_with_bad_credentials_holds_the_channel() -> None:
    sender = Sender(known=Held("401"))
    assert (answered(sender, claim()), sender.sent) == (HeldLookUp("401"), 0)


@pytest.mark.parametrize("known", [Unknown("reset"), NoLookUp("none"), None], ids=str)
def test_a_permitted_one_is_sent_whatever_the_look_up_cannot_tell(known: Any) -> None:
    sender = Sender(known=known)
    claimed = claim(attempts=99, seconds=1e6, permitted=True)
    assert (answered(sender, claimed, keeps_keys=False), sender.sent) == (Done(), 1)


def test_beyond_the_keys_lifetime_nothing_is_sent_blindly() -> None:
    sender = Sender()
    answer = answered(sender, claim(seconds=100.0), key_lifetime=60.0)
    assert (isinstance(answer, Undecided), sender.sent) == (True, 0)


@pytest.mark.parametrize("answer", [FOREVER, TypeError("a bug in a team's judge"), RecursionError()], ids=str)
def test_a_call_without_an_end_and_a_bug_in_a_sender_are_unknown(answer: Any) -> None:
    sender = Sender(answer)
    assert isinstance(answered(sender, claim(doubtful=False)), Unknown)
    assert sender.sent == 1


def test_what_a_bug_says_is_not_told() -> None:
    answer = answered(Sender(ValueError("record content")), claim(doubtful=False))
    assert answer == Unknown("the sender failed: ValueError")


@pytest.mark.parametrize("answer", [Refused("422"), Held("401"), Done()], ids=str)
def test_only_putting_off_is_bounded_in_a_first_call(answer: Answer) -> None:
    late = claim(doubtful=False, attempts=50, seconds=1e6)
    assert answered(Sender(answer), late) == answer
    # it is known that nothing was done: no doubt, but a refusal that a retry takes up
    refused = answered(Sender(Later(1.0, "busy")), late)
    assert isinstance(refused, Refused)
    assert (refused.code, "put off 50 times" in refused.reason) == ("put_off", True)
    assert answered(Sender(Later(1.0)), claim(doubtful=False, attempts=50)) == Later(1.0)
