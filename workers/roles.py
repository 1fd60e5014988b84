"""Which role serves which queues, with which workflows and activities."""

from dataclasses import dataclass

from bulklane.contracts import activity_calls as calls
from bulklane.contracts.lane import (
    BULK_QUEUE,
    CONTROL_QUEUE,
    EFFECTS_PREFIX,
    JOBS_QUEUE,
    SMALL_QUEUE,
    effects_queue,
)

CONTROL_ACTIVITIES = tuple(
    call.__name__ for call in (calls.open_job, calls.look, calls.release, calls.close, calls.apply_verb)
)
WALK_ACTIVITIES = (calls.segment.__name__, calls.freeze.__name__)


class UnknownRole(ValueError):
    """The name is no role; the message lists them."""


@dataclass(frozen=True)
class Served:
    """One task queue with what a worker runs on it."""

    queue: str
    workflows: tuple[str, ...] = ()
    activities: tuple[str, ...] = ()


@dataclass(frozen=True)
class Role:
    """A role: its queues, and whether it runs the control loop. `channel` only for deliveries."""

    name: str
    queues: tuple[Served, ...]
    control_loop: bool = False
    channel: str | None = None


ROLES = {
    role.name: role
    for role in (
        # workflow and activities on one queue of one worker: eager activities save a hop each
        Role("small", (Served(SMALL_QUEUE, ("BulkJob",), CONTROL_ACTIVITIES + WALK_ACTIVITIES),)),
        Role("bulk", (Served(BULK_QUEUE, (), WALK_ACTIVITIES),)),
        Role(
            "control",
            (Served(JOBS_QUEUE, ("BulkJob", "DeliverOwed")), Served(CONTROL_QUEUE, (), CONTROL_ACTIVITIES)),
            control_loop=True,
        ),
    )
}


def role_of(name: str) -> Role:
    """The role of that name, `effects:<channel>` included; raises UnknownRole."""
    if name.startswith(EFFECTS_PREFIX) and len(name) > len(EFFECTS_PREFIX):
        channel = name.removeprefix(EFFECTS_PREFIX)
        return Role(name, (Served(effects_queue(channel), (), (calls.deliver.__name__,)),), channel=channel)
    found = ROLES.get(name)
    if found is None:
        raise UnknownRole(f"{name!r} is no role; there are {', '.join(ROLES)} and {EFFECTS_PREFIX}<channel>")
    return found
