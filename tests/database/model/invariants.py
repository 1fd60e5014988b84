"""What must hold of the jobs: who owns what, which states follow which, what an end and a pause promise.

Each function gets what was committed before and after one step of the machine.
"""

from itertools import combinations

from bulklane.contracts.job import ALLOWED_TRANSITIONS, OVER_STATES, JobState
from tests.database.model.snapshot import Row, Snapshot, is_over
from tests.database.model.world import resources

COUNTERS = ("changed", "skipped", "failed", "not_found")
FINAL_WISHES = ("cancel", "stop")
REOPENABLE = ("completed_with_failures", "failed")


class Violation(AssertionError):
    """Something that may never be."""


def require(holds: bool, what: str, *details: object) -> None:
    """Raise Violation where it doesn't hold."""
    if not holds:
        raise Violation(": ".join([what, *map(str, details)]))


def must_hold(job: Row) -> bool:
    """Whether the job's records may still be changed, or its operation keeps its lease for its effects.

    A retry that finds no records, only deliveries, needs no lease.
    """
    return not is_over(job) and not job["owns_nothing"] and (job["released_at"] is None or job["hold_lease"])


def _resources(job: Row) -> set[str]:
    return set(resources(job["tenant"], job["parameters"]["things"]))


def one_owner(before: Snapshot, after: Snapshot) -> None:
    """A resource has one owner, and the lease table says who."""
    for one, other in combinations([job for job in after.jobs.values() if must_hold(job)], 2):
        shared = _resources(one) & _resources(other)
        require(not shared, "two jobs own a resource", one["job_id"], other["job_id"], shared)
    for job in after.jobs.values():
        held = {name for name, row in after.leases.items() if row["job_no"] == job["job_no"]}
        if must_hold(job):
            require(held == _resources(job), "a job lost its lease", job["job_id"], job["state"], held)
        else:
            require(not held, "a job that is done with its records owns them", job["job_id"], job["state"], held)
    rounds = {(job_no, job["round"]) for job_no, job in after.jobs.items()}
    unknown = [row for row in after.leases.values() if (row["job_no"], row["round"]) not in rounds]
    require(not unknown, "a lease without a job, or of an old round", unknown)


def states_follow(before: Snapshot, after: Snapshot) -> None:
    """A state is reached by the arrows, a terminal one stays (until a retry), stamps and rounds only grow."""
    for job_no, old in before.jobs.items():
        new = after.jobs[job_no]
        if new["round"] != old["round"]:
            reopened = (old["state"] in REOPENABLE, new["state"], new["round"]) == (True, "accepted", old["round"] + 1)
            require(
                reopened and not before.owes(job_no), "a round opened at the wrong time", old["job_id"], old["state"]
            )
            continue
        reached = JobState(new["state"]) in _reachable(JobState(old["state"]))
        require(reached, "an arrow that isn't there", old["job_id"], old["state"], new["state"])
        if is_over(old):
            same = all(old[name] == new[name] for name in ("state", "reason", "over_at", "released_at", *COUNTERS))
            require(same, "a terminal state changed", old["job_id"], old["state"], new["state"])
        for name in ("run_scheduled", "opened_round", "round"):
            require(old[name] <= new[name], f"{name} fell", old["job_id"], old[name], new[name])
        stamped = old["run_id"] == new["run_id"] or old["run_scheduled"] < new["run_scheduled"]
        require(stamped, "an older run took the round", old["job_id"], old["run_id"], new["run_id"])


def _reachable(state: JobState) -> set[JobState]:
    """What steps can lead to within a round."""
    found, ahead = {state}, [state]
    while ahead:
        now = ahead.pop()
        following = set() if now in OVER_STATES else ALLOWED_TRANSITIONS[now] - found
        found |= following
        ahead += following
    return found


def an_end_is_true(before: Snapshot, after: Snapshot) -> None:
    """Over or released: ranges shut, every selected record accounted for. Completed: nothing owed."""
    for key, row in after.ranges.items():
        stale = row["open"] and row["round"] < after.jobs[key[0]]["round"]
        require(not stale, "a range of an old round is open", key)
    for job_no, job in after.jobs.items():
        if job["released_at"] is None:
            require(not is_over(job), "over, but not released", job["job_id"], job["state"])
            continue
        ranges = after.ranges_of(job)
        require(not any(row["open"] for row in ranges), "released with an open range", job["job_id"])
        for name in COUNTERS:
            counted = after.counted(job, name)
            require(job[name] == counted, f"released with another count of {name}", job["job_id"], job[name], counted)
        total = job["total"] or 0
        processed = sum(job[name] for name in COUNTERS)
        require(processed + job["not_started"] == total, "records are missing", job["job_id"], processed, total)
        was_over = job_no in before.jobs and is_over(before.jobs[job_no])
        if job["state"] in ("completed", "completed_with_failures") and not was_over:
            require(job["not_started"] == 0, "completed with records not started", job["job_id"])
            require(not after.owes(job_no), "completed while it owes", job["job_id"])
            troubled = job["failed"] > 0 or any(
                row["job_no"] == job_no and row["state"] in ("refused", "undecided", "given_up")
                for row in after.deliveries.values()
            )
            require(troubled == (job["state"] != "completed"), "completed under the wrong name", job["job_id"])
        if job["state"] == "cancelled" and not was_over:
            require(not after.owes(job_no), "cancelled while it owes", job["job_id"])


def a_pause_is_true(before: Snapshot, after: Snapshot) -> None:
    """Paused: every range is shut. Walking: every range is open, so that a resume is true too."""
    for job in after.jobs.values():
        opened = [row["open"] for row in after.ranges_of(job)]
        if job["state"] == "paused":
            require(not any(opened), "paused with an open range", job["job_id"])
        if job["state"] == "walking":
            require(all(opened) and bool(opened), "walking with a shut range", job["job_id"])


def wishes_apply_once(before: Snapshot, after: Snapshot) -> None:
    """A wish changes by a message that is new in this step (or by the system's stop); a final one never does."""
    for job_no, old in before.wishes.items():
        new = after.wishes[job_no]
        require(old["looked_at"] <= new["looked_at"], "a wish that was heard is unheard", job_no)
        if old["wished_at"] == new["wished_at"]:
            require(old["wish"] == new["wish"], "a wish changed in silence", job_no)
            continue
        reopened = before.jobs[job_no]["round"] < after.jobs[job_no]["round"]
        require(reopened or old["wish"] not in FINAL_WISHES, "a final wish changed", job_no, old["wish"], new["wish"])
        fresh = (job_no, new["why"]) in after.messages.keys() - before.messages.keys()
        require(fresh or new["wish"] == "stop", "a message was applied again", job_no, new["why"])
    lost = before.messages.keys() - after.messages.keys()
    require(not lost, "a message is forgotten", lost)


JOB_INVARIANTS = (one_owner, states_follow, an_end_is_true, a_pause_is_true, wishes_apply_once)
