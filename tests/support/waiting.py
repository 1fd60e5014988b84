"""Waiting for a state with a deadline; never sleep and hope."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.02


def until(question: Callable[[], T], seconds: float = 20.0, *, what: str = "") -> T:
    """The first true answer; fails after so many seconds, telling the last answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or question.__name__}; last answer {answer!r}")
        time.sleep(POLL_SECONDS)


async def until_async(question: Callable[[], Awaitable[T]], seconds: float = 20.0, *, what: str = "") -> T:
    """The same for a coroutine."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await question()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}; last answer {answer!r}")
        await asyncio.sleep(POLL_SECONDS)
