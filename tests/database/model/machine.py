"""The machine's rules: what hypothesis lets happen next."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.job import JobState
from bulklane.contracts.message import Verb
from bulklane.database.control import Suspect
from bulklane.database.delivery import Claim
from bulklane.database.effect import OwedSlice
from bulklane.database.range import RangeRef
from tests.database.model import scripts, world
from tests.database.model.base import (
    EVENTS,
    PICK,
    REQUESTS,
    SMALL,
    ModelBase,
    held,
    idle,
    picked,
    with_freezing,
    with_jobs,
    with_ranges,
    with_walkers,
)
from tests.database.model.finish import Finish
from tests.database.model.invariants import require
from tests.database.model.scripts import Walker
from tests.database.model.snapshot import Row, Snapshot

SLOTS = st.sampled_from(["job-1", "job-2", "job-3", "job-4"])
SIZE = st.integers(1, 8)
MOVES = st.sampled_from(["look", "cancel", "cancel", "settle"])
# 5: right before a cancel shuts the ranges
MIDDLE = st.sampled_from([0, 1, 2, 3, 4, 5, 5, 5, 6, 7])
# 0: scheduled now; more: one that was scheduled before and arrives late
AGE = st.sampled_from([0, 0, 0, 1, 2, 5])
TENANT = st.sampled_from(sorted(world.TENANTS))
# None: the system's stop
VERBS = st.sampled_from([Verb.PAUSE, Verb.RESUME, Verb.PAUSE, Verb.RESUME, Verb.CANCEL, None])
SETTLED = st.sampled_from([JobState.TERMINATED, JobState.FAILED])
ANSWERS = st.sampled_from(
    [
        DeliveryState.DONE,
        DeliveryState.DONE,
        DeliveryState.LATER,
        DeliveryState.UNKNOWN,
        DeliveryState.REFUSED,
        DeliveryState.UNDECIDED,
    ]
)


class LeaseModel(Finish, ModelBase):
    """Jobs over two tenants' records, whose resources overlap."""

    # --- time: who is held, goes on or dies

    @held
    @rule(pick=PICK, events=EVENTS, dies=st.sampled_from([False, False, False, True]))
    def go_on(self, pick: int, events: int | None, dies: bool) -> None:
        """An actor that was held goes on, and its commit is a late one; or it is gone."""
        actor = picked([actor for actor in self.actors if actor.run is not None], pick)
        self._stopped(actor, actor.kill() if dies else actor.go_on(events))

    # --- beginning

    @idle
    @rule(job_id=SLOTS, request=REQUESTS, small=SMALL, events=EVENTS)
    def accept(self, job_id: str, request: dict[str, Any], small: int, events: int | None) -> None:
        """A request comes in; perhaps one that came before, perhaps under another's id or key."""
        self._begin("accept", scripts.accept({"job_id": job_id, **request}, small), events, self._accepted)

    def _accepted(self, accepted: Any) -> None:
        require(accepted.job.job_no in self.after.jobs, "accepted, but not stored", accepted.job.job_id)

    @idle
    @rule(job_id=SLOTS, request=REQUESTS, small=SMALL, age=AGE, events=EVENTS)
    def open_job(self, job_id: str, request: dict[str, Any], small: int, age: int, events: int | None) -> None:
        """A workflow begins, for an accepted job or directly, or after a reset; or an old run's attempt comes late."""
        script = scripts.open_job(job_id, self._number(age), [request], small)
        self._begin("open_job", script, events, lambda view: None)

    @with_jobs
    @idle
    @rule(pick=PICK, age=AGE, events=EVENTS)
    def reset(self, pick: int, age: int, events: int | None) -> None:
        """A new run, or the old one late, opens a job that is there."""
        script = scripts.open_job(picked(self._jobs(), pick)["job_id"], self._number(age), [], 0)
        self._begin("reset", script, events, lambda view: None)

    @with_freezing
    @idle
    @rule(pick=PICK, events=EVENTS)
    def freeze(self, pick: int, events: int | None) -> None:
        """A selection is expanded."""
        job = picked(self._freezing(), pick)
        self._begin("freeze", scripts.freeze(job["job_no"], job["round"]), events, lambda nothing: None)

    # --- walking

    @with_ranges
    @idle
    @rule(pick=PICK, age=AGE, events=EVENTS)
    def take(self, pick: int, age: int, events: int | None) -> None:
        """A segment begins on a range, or an old one arrives late. There is none before its round was opened."""
        ref = RangeRef(*picked(self._walked_ranges(), pick))
        self._begin("take", scripts.take(ref, self._number(age)), events, self._took)

    def _took(self, walker: Walker) -> None:
        mine, stands = walker.epoch, walker.standing.epoch
        require(stands >= mine, "a range stands under an older epoch than the one just written", mine, stands)
        self.walkers = [*self.walkers[-5:], walker]

    @with_ranges
    @idle
    @rule(pick=PICK, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3), events=EVENTS)
    def segment(self, pick: int, sizes: list[int], events: int | None) -> None:
        """A new attempt at a range that isn't done, and its first chunks."""
        undone = [
            key for key in self._walked_ranges() if self.after.ranges[key]["cursor"] < self.after.ranges[key]["hi"]
        ]
        ref = RangeRef(*picked(undone or self._walked_ranges(), pick))
        self._begin("take", scripts.take(ref, self._number(0)), None, self._took)
        for size in sizes:
            if self.walkers and any(actor.run is None for actor in self.actors):
                self._chunk(self.walkers[-1], size, True, events)

    @with_walkers
    @idle
    @rule(pick=PICK, size=SIZE, looks=st.booleans(), learns=st.booleans(), events=EVENTS)
    def walk_chunk(self, pick: int, size: int, looks: bool, learns: bool, events: int | None) -> None:
        """A walker's next chunk, where it believes that the range stands; also one whose range another has taken."""
        walker = picked(self.walkers, pick)
        if looks:
            self._look_again(walker)
        self._chunk(walker, size, learns, events)

    def _chunk(self, walker: Walker, size: int, learns: bool, events: int | None) -> None:
        def ended(result: Any) -> None:
            if learns and result is not None:
                walker.standing = walker.standing.at(result.cursor)

        if not walker.standing.done:
            self._begin("walk_chunk", scripts.walk_chunk(walker, size), events, ended)

    @with_walkers
    @idle
    @rule(pick=PICK, events=EVENTS)
    def fail_record(self, pick: int, events: int | None) -> None:
        """A walker reports the record at its cursor."""
        walker = picked(self.walkers, pick)
        if not walker.standing.done:
            self._begin("fail_record", scripts.fail_record(walker), events, lambda result: None)

    @with_walkers
    @idle
    @rule(pick=PICK, leaves=st.booleans(), events=EVENTS)
    def look_again(self, pick: int, leaves: bool, events: int | None) -> None:
        """A walker ends in order, or reads where its range stands and goes on from there, whosever it is."""
        walker = picked(self.walkers, pick)
        if leaves:
            self._begin("leave", scripts.leave(walker), events, lambda nothing: None)
            return
        self._look_again(walker)

    def _look_again(self, walker: Walker) -> None:
        self._begin("look_again", scripts.look_again(walker), None, lambda found: setattr(walker, "standing", found))

    @with_walkers
    @idle
    @rule(tenant=TENANT, number=st.integers(0, 11), color=st.sampled_from(["blue", None]), events=EVENTS)
    def write(self, tenant: str, number: int, color: str | None, events: int | None) -> None:
        """A user's own write: the record gets a color, or goes."""
        script = scripts.write_by_a_user(tenant, number, color)
        self._begin("write by a user", script, events, lambda nothing: None)

    # --- what moves a job

    @with_jobs
    @idle
    @rule(pick=PICK, events=EVENTS)
    def look(self, pick: int, events: int | None) -> None:
        """Anybody lets a job advance."""
        self._begin("look", scripts.look(picked(self._jobs(), pick)["job_no"]), events, lambda view: None)

    @with_jobs
    @idle
    @rule(pick=PICK, verb=VERBS, age=st.sampled_from([0, 0, 1, 2]), events=EVENTS)
    def say(self, pick: int, verb: Verb | None, age: int, events: int | None) -> None:
        """Somebody says a verb, the system stops a job that fails, or a message that was said before comes again."""
        job_no = picked(self._jobs(), pick)["job_no"]
        if verb is None:
            self._begin("stop", scripts.stop(job_no), events, lambda nothing: None)
            return
        known = self.said.setdefault(job_no, [])
        if age == 0 or not known:
            # people who send signals choose the same id for more than one job
            known.append((str(len(known) + 1), verb))
        message_id, said = picked(known, age)

        def ended(_: None) -> None:
            require((job_no, message_id) in self.after.messages, "a message isn't noted", job_no, message_id)

        self._begin(f"say {said}", scripts.say(job_no, message_id, said), events, ended)

    @precondition(lambda self: bool(self.after.jobs) and len(self.suspects) < 3)
    @idle
    @rule()
    def suspect(self) -> None:
        """The control loop reads which jobs are silent."""
        self._begin("suspect", scripts.suspects, None, self._suspected)

    def _suspected(self, found: list[Suspect]) -> None:
        self.suspects = [*self.suspects, *found][-6:]
        epochs = {key: row["epoch"] for key, row in self.after.ranges.items()}
        self.seen |= dict.fromkeys(found, epochs)

    @precondition(lambda self: bool(self.suspects))
    @idle
    @rule(pick=PICK, state=SETTLED, events=EVENTS)
    def settle(self, pick: int, state: JobState, events: int | None) -> None:
        """The control loop settles what it suspected, perhaps long after, while the job went on."""
        suspect = picked(self.suspects, pick)
        self.suspects.remove(suspect)

        def ended(settled: bool) -> None:
            if settled:
                self._was_as_suspected(suspect)

        self._begin("settle", scripts.settle(suspect, state), events, ended)

    def _was_as_suspected(self, suspect: Suspect) -> None:
        old = self.before.jobs[suspect.job_no]
        same = (old["round"], old["run_id"]) == (suspect.round, suspect.run_id)
        require(same, "settled a job that another run had opened", suspect, old["run_id"])
        # those of old rounds, and of ranges that are shut already, aren't locked by the settling, and do no harm
        walked = {key: row["epoch"] for key, row in self._open_ranges(self.before, old).items()}
        seen = {key: self.seen[suspect].get(key, 0) for key in walked}
        require(walked == seen, "settled a job that walked on", suspect, walked, seen)

    def _open_ranges(self, snapshot: Snapshot, job: Row) -> dict[tuple[int, int, int], Row]:
        place = (job["job_no"], job["round"])
        return {key: row for key, row in snapshot.ranges.items() if key[:2] == place and row["open"]}

    @with_walkers
    @idle
    @rule(pick=PICK, how=MOVES, events=MIDDLE, size=SIZE)
    def move_around_a_chunk(self, pick: int, how: str, events: int, size: int) -> None:
        """While somebody is in the middle of moving a job, its walker commits, if it can."""
        if not self._two_are_idle():
            return
        able = [walker for walker in self.walkers if self._may_walk(walker)]
        walker = picked(able or self.walkers, pick)
        self._look_again(walker)
        job_no = walker.ref.job_no
        script = scripts.look(job_no)
        if how == "cancel":
            self._begin("stop", scripts.stop(job_no), None, lambda nothing: None)
        if how == "settle":
            self._begin("suspect", scripts.suspects, None, self._suspected)
            mine = [suspect for suspect in self.suspects if suspect.job_no == job_no]
            script = scripts.settle(mine[-1], JobState.FAILED) if mine else script
        self._around(f"{how} around a chunk", script, events, lambda: self._chunk(walker, size, True, None))

    def _may_walk(self, walker: Walker) -> bool:
        row = self.after.ranges[walker.ref.job_no, walker.ref.round, walker.ref.range_no]
        return bool(row["epoch"] == walker.epoch and row["open"] and row["cursor"] < row["hi"])

    @with_freezing
    @idle
    @rule(pick=PICK, events=st.integers(0, 9))
    def freeze_around_an_end(self, pick: int, events: int) -> None:
        """While a selection is expanded, its job is stopped and ends, if it can."""
        job = picked(self._freezing(), pick)

        def end() -> None:
            for script in (scripts.stop(job["job_no"]), scripts.look(job["job_no"])):
                self._begin("stop and look", script, None, lambda nothing: None)

        if self._two_are_idle():
            self._around("freeze around an end", scripts.freeze(job["job_no"], job["round"]), events, end)

    @precondition(lambda self: bool(self._retryable()))
    @idle
    @rule(pick=PICK, age=st.sampled_from([0, 0, 0, 1]), events=EVENTS)
    def retry(self, pick: int, age: int, events: int | None) -> None:
        """Somebody opens a job's next round; perhaps after having seen the one before."""
        job = picked(self._retryable(), pick)
        script = scripts.retry(job["job_id"], max(1, job["round"] - age), f"retry {self._number(0)}")
        self._begin("retry", script, events, lambda retried: None)

    # --- effects

    @precondition(lambda self: bool(self.after.owed))
    @idle
    @rule(pick=PICK, most=st.integers(1, 9), expires=st.booleans(), events=EVENTS)
    def claim(self, pick: int, most: int, expires: bool, events: int | None) -> None:
        """A sender marks deliveries; its claim may run out at once."""
        job_no = picked(sorted({key[0] for key in self.after.owed}), pick)

        def ended(claims: list[Claim]) -> None:
            self._may_be_called(job_no, claims)
            self.claims = [*self.claims[-7:], (job_no, claims)] if claims else self.claims

        self._begin("claim", scripts.claim(job_no, most, 0.0 if expires else 1000.0), events, ended)

    def _may_be_called(self, job_no: int, claims: list[Claim]) -> None:
        for one in claims:
            old = self.before.deliveries.get((job_no, one.effect, one.key))
            state = None if old is None else old["state"]
            require(state in (None, "sending", "unknown", "later"), "claimed what is final", one, state)
            require(one.doubtful == (state in ("sending", "unknown")), "called again as if for the first time", one)

    @precondition(lambda self: bool(self.claims))
    @idle
    @rule(pick=PICK, state=ANSWERS, due=st.sampled_from([0.0, 1000.0]), events=EVENTS)
    def settle_calls(self, pick: int, state: DeliveryState, due: float, events: int | None) -> None:
        """A sender writes its answers, perhaps when its claim has long run out, perhaps a second time."""
        job_no, claims = picked(self.claims, pick)

        def ended(_: None) -> None:
            for one in claims:
                key = (job_no, one.effect, one.key)
                mine = self.before.deliveries[key]["token"] == str(one.token)
                same = self.before.deliveries[key] == self.after.deliveries[key]
                require(mine or same or state is DeliveryState.DONE, "settled what another has claimed", key, state)

        self._begin("settle_calls", scripts.settle_calls(job_no, claims, state, due), events, ended)

    @precondition(lambda self: any(row["channel"] == world.INDEX for row in self.after.owed.values()))
    @idle
    @rule(pick=PICK)
    def read_slices(self, pick: int) -> None:
        """An indexer reads what is owed."""
        job_no = picked(sorted({key[0] for key in self.after.owed}), pick)

        def ended(found: list[OwedSlice]) -> None:
            self.slices = [*self.slices[-7:], *((job_no, one) for one in found)]

        self._begin("read_slices", scripts.read_slices(job_no), None, ended)

    @precondition(lambda self: bool(self.slices))
    @idle
    @rule(pick=PICK, refuses=st.booleans(), events=EVENTS)
    def settle_slice(self, pick: int, refuses: bool, events: int | None) -> None:
        """An indexer is done with a slice, perhaps one that another has done."""
        job_no, piece = picked(self.slices, pick)
        turn = self.after.jobs[job_no]["turn"]
        script = scripts.settle_slice(job_no, turn, piece, refuses)
        self._begin("settle_slice", script, events, lambda nothing: None)
