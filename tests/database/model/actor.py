"""An actor: runs product code over connections of its own, and can be held at any statement or right before a commit.

Each run has a thread, but only one thread ever moves: control is handed over, so a replay is exact. A statement that
would wait for another actor's lock ends its run with WouldWait, as if the process had been killed there.
"""

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, event

from bulklane.database.engine import connect_engine

HANDOVER_SECONDS = 60.0
LOCK_NOT_AVAILABLE = "55P03"
# a wait is counted from when it begins, so a slow machine makes no waits of what are none
LIMITS = "SET LOCAL lock_timeout = '3ms'; SET LOCAL statement_timeout = 0; SET LOCAL transaction_timeout = 0"

Script = Callable[[Engine], Any]


class WouldWait(BaseException):
    """A lock is held by an actor that can't move now. Not an Exception: product code must not try again in here."""


class Killed(BaseException):
    """The process is gone; its transaction is rolled back."""


class Run:
    """One script, from its start to its result or error."""

    def __init__(self, name: str, script: Callable[[], Any]) -> None:
        self.name = name
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = False
        self.in_one_go = True
        self._script = script
        self._left: int | None = None
        self._killed = False
        self._its_turn, self._machines_turn = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def go_on(self, events: int | None) -> None:
        """Until it has passed so many events, or (None) to its end."""
        self._left = events
        self._its_turn.release()
        if not self._machines_turn.acquire(timeout=HANDOVER_SECONDS):
            raise TimeoutError(f"{self.name} neither ends nor stops")
        if self.ended:
            self._thread.join()

    def kill(self) -> None:
        """End it where it stands."""
        self._killed = True
        self.go_on(None)

    def event(self) -> None:
        """A statement or a commit is next: go past it, or stop here until told to go on."""
        while self._left == 0 and not self._killed:
            self.in_one_go = False
            self._machines_turn.release()
            self._its_turn.acquire()
            if self._killed:
                raise Killed
        if self._left is not None:
            self._left -= 1

    def _work(self) -> None:
        self._its_turn.acquire()
        try:
            self.result = self._script()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._machines_turn.release()


class Actor:
    """One of several that act on the database at the same time."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.run: Run | None = None
        self._engine = connect_engine(url, role=f"model {name}", pool_size=2)
        listeners: dict[str, Callable[..., None]] = {
            "begin": _limit,
            "before_cursor_execute": lambda *_: self._event(),
            "commit": lambda _: self._event(),
            "after_cursor_execute": _limit_again,
            "handle_error": _no_waiting,
        }
        for moment, listener in listeners.items():
            event.listen(self._engine, moment, listener)

    def start(self, name: str, script: Script, events: int | None) -> Run:
        """Run a script until it has passed so many events, or to its end."""
        self.run = Run(name, lambda: script(self._engine))
        return self.go_on(events)

    def go_on(self, events: int | None) -> Run:
        """The held run goes on."""
        assert self.run is not None
        self.run.go_on(events)
        return self._stopped(self.run)

    def kill(self) -> Run:
        """The held run's process is gone."""
        assert self.run is not None
        self.run.kill()
        return self._stopped(self.run)

    def dispose(self) -> None:
        """Let go of the connections."""
        self._engine.dispose()

    def _stopped(self, run: Run) -> Run:
        if run.ended:
            self.run = None
        return run

    def _event(self) -> None:
        if self.run is not None:
            self.run.event()


def _limit(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute(LIMITS)


def _limit_again(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
    """The product's own limits would let a run wait for one that can't move."""
    if "set_config" in statement:
        _limit(connection)


def _no_waiting(context: Any) -> None:
    if getattr(context.original_exception, "sqlstate", "") == LOCK_NOT_AVAILABLE:
        raise WouldWait
