"""How each example ends: what is held goes on, then every job is brought to its end, as live workers would do."""

from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.message import Verb
from bulklane.database.delivery import Claim
from bulklane.database.effect import OwedSlice
from bulklane.database.range import RangeRef
from tests.database.model import scripts
from tests.database.model.actor import Script
from tests.database.model.base import ModelBase
from tests.database.model.invariants import require
from tests.database.model.scripts import Walker
from tests.database.model.snapshot import Row, is_over

MOST_ROUNDS = 12


class Finish(ModelBase):
    """No job may be stuck, whatever was done to it."""

    def teardown(self) -> None:
        """Runs after every example, also after one that failed: then only the actors are let go."""
        try:
            if getattr(self, "sound", False):
                self._finish_all()
        finally:
            self._let_go()

    def _finish_all(self) -> None:
        for actor in self.actors:
            if actor.run is not None:
                self._stopped(actor, actor.go_on(None))
        for _ in range(MOST_ROUNDS):
            unfinished = [job for job in self._jobs() if not is_over(job) or self.after.owes(job["job_no"])]
            if not unfinished:
                break
            for job in unfinished:
                self._finish(job)
        for job in self._jobs():
            owing = [row for key, row in self.after.deliveries.items() if key[0] == job["job_no"]]
            require(is_over(job), "stuck", job["job_id"], job["state"], owing)
        require(not self.after.leases, "every job is over, and a lease is left", self.after.leases)
        owing = [job["job_id"] for job in self._jobs() if self.after.owes(job["job_no"])]
        require(not owing, "effects that can't be delivered", owing)

    def _finish(self, job: Row) -> None:
        job_no = job["job_no"]
        if not is_over(job):
            if self.after.wishes[job_no]["wish"] == "pause":
                self._run(scripts.say(job_no, f"{job_no}/end/{self._number(0)}", Verb.RESUME))
            if job["opened_round"] < job["round"]:
                self._run(scripts.open_job(job["job_id"], self._number(0), [], 0))
            self._run(scripts.look(job_no))
        if self.after.jobs[job_no]["state"] == "freezing":
            self._run(scripts.freeze(job_no, job["round"]))
        if self.after.jobs[job_no]["state"] == "walking":
            self._walk(job)
        self._deliver(job)
        if not is_over(job):
            self._run(scripts.look(job_no))

    def _walk(self, job: Row) -> None:
        for row in self.after.ranges_of(job):
            if row["cursor"] < row["hi"]:
                taken: list[Walker] = []
                ref = RangeRef(row["job_no"], row["round"], row["no"])
                # a number that was given out before may stand there, so it has to be a new one
                self._begin("end: take", scripts.take(ref, self._number(0)), None, taken.append)
                self._run(scripts.walk_chunk(taken[0], 1000))

    def _deliver(self, job: Row) -> None:
        job_no = job["job_no"]
        if not self.after.owes(job_no):
            return
        scripts.time_passes(self.observer)
        claims: list[list[Claim]] = []
        self._begin("end: claim", scripts.claim(job_no, 100, 1000.0), None, claims.append)
        if claims[0]:
            self._run(scripts.settle_calls(job_no, claims[0], DeliveryState.DONE, 0.0))
        if not self.after.owes(job_no):
            return
        slices: list[list[OwedSlice]] = []
        self._begin("end: read_slices", scripts.read_slices(job_no), None, slices.append)
        for piece in slices[0]:
            self._run(scripts.settle_slice(job_no, job["turn"], piece, refuses=False))

    def _run(self, script: Script) -> None:
        self._begin("end", script, None, lambda _: None)
