"""A job in memory behind the declared activities: what the workflow is told, and what it did."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from temporalio import activity
from temporalio.exceptions import ApplicationError

from bulklane.contracts import activity_calls as calls
from bulklane.contracts.effect import DeliverAnswer, DeliverEnd, DeliverRequest
from bulklane.contracts.job import OVER_STATES, JobState, JobView, Wish, phase_of
from bulklane.contracts.message import Verb, VerbMessage, VerbRequest
from bulklane.contracts.walk import FreezeRequest, SegmentAnswer, SegmentEnd, SegmentRequest

_S = JobState
_WISH_OF = {Verb.PAUSE: Wish.PAUSE, Verb.RESUME: Wish.RUN, Verb.CANCEL: Wish.CANCEL}
POLL = 0.01


@dataclass
class FakeJob:
    """Answers as the database would for one job. Tests script it through its fields, and read `log`.

    `segments` left for a range: each ends with `continue` but the last. `stuck`: rounds and ranges whose segments never
    end by themselves and heed no cancellation. `failing`: what the next calls of an activity raise, in order.
    `answers`: what the next deliveries on a channel or segments of a range answer, in order. `late`: what the next
    segments of a range answer when they are stuck no longer. `held`: segments and deliveries stay where they are.
    `rude`: a cancelled delivery goes on for a moment and then fails as if its worker had died. `after`: what happens
    once between a step's commit and its answer.
    """

    ranges: int = 2
    channels: list[str] = field(default_factory=lambda: ["notices"])
    state: JobState = _S.ACCEPTED
    to_freeze: bool = False
    round: int = 1
    segments: dict[int, int] = field(default_factory=dict)
    owed: dict[str, int] = field(default_factory=dict)
    stuck: set[tuple[int, int]] = field(default_factory=set)
    held: bool = False
    failing: dict[str, list[BaseException]] = field(default_factory=dict)
    answers: dict[str, list[Any]] = field(default_factory=dict)
    late: dict[str, list[SegmentAnswer]] = field(default_factory=dict)
    rude: bool = False
    after: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    view: dict[str, Any] = field(default_factory=dict)
    wish: Wish = Wish.RUN
    released: bool = False
    freezes_for_nothing: int = 0
    starts: list[list[Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    messages: dict[str, VerbMessage] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)
    busy: Counter[str] = field(default_factory=Counter)
    most_busy: Counter[str] = field(default_factory=Counter)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        for number in range(self.ranges):
            self.segments.setdefault(number, 1)
        for channel in self.channels:
            self.owed.setdefault(channel, 0)

    @property
    def over(self) -> bool:
        """Whether the state is a terminal one."""
        return self.state in OVER_STATES

    def count(self, call: str) -> int:
        """How often it was called."""
        return self.log.count(call)

    def retry(self) -> None:
        """Another round, with one range more."""
        self.state, self.released, self.round, self.ranges = _S.ACCEPTED, False, self.round + 1, self.ranges + 1
        self.segments = dict.fromkeys(range(self.ranges), 1)

    def activities(self) -> list[Callable[..., Any]]:
        """To register, under the declared names."""
        return [
            self.open_job,
            self.look,
            self.release,
            self.close,
            self.apply_verb,
            self.freeze,
            self.segment,
            self.deliver,
        ]

    @activity.defn(name=calls.open_job.__name__)
    async def open_job(self, start_arguments: list[Any]) -> JobView:
        """An accepted round begins."""
        self.starts.append(start_arguments)
        self._called("open")
        if self.state is _S.ACCEPTED:
            self.state = _S.FREEZING if self.to_freeze else _S.WALKING
        return await self._answer("open")

    @activity.defn(name=calls.look.__name__)
    async def look(self, job_no: int) -> JobView:
        """Take the steps that are due."""
        self._called("look")
        return await self._answer("look")

    @activity.defn(name=calls.release.__name__)
    async def release(self, job_no: int) -> JobView:
        """The same."""
        self._called("release")
        return await self._answer("release")

    @activity.defn(name=calls.close.__name__)
    async def close(self, job_no: int) -> JobView:
        """The same."""
        self._called("close")
        return await self._answer("close")

    @activity.defn(name=calls.apply_verb.__name__)
    async def apply_verb(self, request: VerbRequest) -> None:
        """Once by the message's id; a cancel is final."""
        self._called(str(request.message.verb))
        message = request.message
        self.heard.append(message.message_id)
        if message.message_id in self.messages:
            return
        self.messages[message.message_id] = message
        if self.wish is not Wish.CANCEL and message.verb in _WISH_OF:
            self.wish = _WISH_OF[message.verb]

    @activity.defn(name=calls.freeze.__name__)
    async def freeze(self, request: FreezeRequest) -> None:
        """Ranges are cut."""
        self._called("freeze")
        if self.freezes_for_nothing:
            self.freezes_for_nothing -= 1
        elif self.state is _S.FREEZING:
            self.state = _S.WALKING

    @activity.defn(name=calls.segment.__name__)
    async def segment(self, request: SegmentRequest) -> SegmentAnswer:
        """One segment of a range; notes how many of one range ran side by side."""
        number, name = request.range_no, f"range {request.range_no}"
        self._called(name)
        self._enter(name)
        try:
            if self.answers.get(name):
                return cast("SegmentAnswer", self.answers[name].pop(0))
            while (request.round, number) in self.stuck and not self.let_go.is_set():
                await self._heedless()
            if self.late.get(name):
                return self.late[name].pop(0)
            while self.held and self._open and not self.let_go.is_set():
                activity.heartbeat()
                await asyncio.sleep(POLL)
            if self.wish is not Wish.RUN:
                return SegmentAnswer(SegmentEnd.WISH)
            if not self._open:
                return SegmentAnswer(SegmentEnd.SHUT)
            self.segments[number] = max(0, self.segments[number] - 1)
            done = self.segments[number] == 0
            return SegmentAnswer(SegmentEnd.DONE if done else SegmentEnd.CONTINUE, processed=7, owed=1)
        finally:
            self.busy[name] -= 1

    @activity.defn(name=calls.deliver.__name__)
    async def deliver(self, request: DeliverRequest) -> DeliverAnswer:
        """Deliver what the channel owes; wait inside while more may come."""
        channel = request.channel
        self._called(f"deliver {channel}")
        self._enter(channel)
        try:
            if self.answers.get(channel):
                return cast("DeliverAnswer", self.answers[channel].pop(0))
            while not self.let_go.is_set():
                activity.heartbeat()
                if self.wish is Wish.PAUSE and not self.over:
                    return DeliverAnswer(DeliverEnd.PAUSED)
                if not self.held and self.owed[channel]:
                    self.owed[channel] -= 1
                    self.log.append(f"delivered {channel}")
                elif not self.owed[channel] and self.released:
                    break
                await asyncio.sleep(POLL)
            return DeliverAnswer(DeliverEnd.DONE)
        except asyncio.CancelledError:
            if self.rude:
                await asyncio.sleep(1.2)  # a new run begins up to a second after the last
                raise ApplicationError("the connection was lost") from None
            raise
        finally:
            self.busy[channel] -= 1

    @property
    def _open(self) -> bool:
        return self.state is _S.WALKING and self.wish is Wish.RUN

    def _enter(self, name: str) -> None:
        self.busy[name] += 1
        self.most_busy[name] = max(self.most_busy[name], self.busy[name])

    async def _heedless(self) -> None:
        activity.heartbeat()
        try:
            await asyncio.sleep(POLL)
        except asyncio.CancelledError:
            self.log.append("cancellation heard")

    def _called(self, call: str) -> None:
        self.log.append(call)
        failures = self.failing.get(call)
        if failures:
            raise failures.pop(0)

    async def _answer(self, call: str) -> JobView:
        while self._step():
            pass
        view = self._view()
        # what happens between the commit and the answer
        if call in self.after:
            await self.after.pop(call)()
        return view

    def _step(self) -> bool:
        before = self.state, self.released
        owes = sum(self.owed.values()) > 0
        walked = not any(self.segments[number] for number in range(self.ranges)) and not any(
            stuck == self.round for stuck, _ in self.stuck
        )
        if self.wish is Wish.CANCEL and not self.over:
            self.state, self.released = _S.CANCELLING if owes else _S.CANCELLED, True
        elif self.wish is Wish.PAUSE and self.state in (_S.WALKING, _S.DELIVERING):
            self.state = _S.PAUSED
        elif self.state is _S.PAUSED and self.wish is Wish.RUN:
            self.state = _S.DELIVERING if self.released else _S.WALKING
        elif self.state is _S.WALKING and walked:
            self.state, self.released = _S.DELIVERING, True
        elif self.state is _S.DELIVERING and not owes:
            self.state = _S.COMPLETED
        return (self.state, self.released) != before

    def _view(self) -> JobView:
        values: dict[str, Any] = {
            "job_no": 7,
            "job_id": "job",
            "tenant": "acme",
            "operation": "close_accounts",
            "round": self.round,
            "state": self.state,
            "phase": phase_of(self.state),
            "lane": "small",
            "ranges": self.ranges,
            "channels": self.channels,
            "owed": sum(self.owed.values()),
            "total": 10,
            "heartbeat_seconds": 3.0,
            **self.view,
        }
        return JobView(**values)
