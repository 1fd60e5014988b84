"""What must hold of the records: changed once, by who may; ledger, counters, audit, exceptions and effects agree."""

from collections import Counter

from tests.database.model.invariants import COUNTERS, require
from tests.database.model.snapshot import Row, Snapshot
from tests.database.model.world import CALLS, INDEX, effects_of

CHANGING = ("walking", "pausing", "cancelling")
FINAL_DELIVERIES = ("done", "refused", "undecided", "given_up")


def chunks_pass_the_gate(before: Snapshot, after: Snapshot) -> None:
    """What this step committed was committed under the range's epoch, at its cursor, open, in a job that walks."""
    for key in after.chunks.keys() - before.chunks.keys():
        chunk, place = after.chunks[key], key[:3]
        require(place in before.ranges, "a chunk of a range that wasn't there", key)
        old, job = before.ranges[place], before.jobs[key[0]]
        require(chunk["epoch"] == old["epoch"], "a chunk under an old epoch", key, chunk["epoch"], old["epoch"])
        require(old["open"], "a chunk of a shut range", key, job["state"])
        require(chunk["lo"] == old["cursor"], "a chunk that isn't at the cursor", key, chunk["lo"], old["cursor"])
        free = job["released_at"] is None and job["state"] in CHANGING
        require(free, "a chunk of a job that doesn't walk", key, job["state"])
        require(chunk["round"] == job["round"], "a chunk of an old round", key, job["round"])


def ranges_only_go_on(before: Snapshot, after: Snapshot) -> None:
    """Cursor and epoch never fall; only a new epoch can find the one before dead."""
    for key, old in before.ranges.items():
        new = after.ranges[key]
        for name in ("cursor", "epoch", "next_seq"):
            require(old[name] <= new[name], f"the {name} fell", key, old[name], new[name])
        alive = new["deaths"] <= old["deaths"] or new["epoch"] > old["epoch"]
        require(alive, "a repeated take counts as a death", key)


def ledger_is_exact(before: Snapshot, after: Snapshot) -> None:
    """The ledger tiles each range up to its cursor, epochs in order, and its sums are the range's counters."""
    for key, row in after.ranges.items():
        chunks = after.chunks_of(*key)
        edges = [row["lo"], *(chunk["hi"] for chunk in chunks)]
        require([chunk["lo"] for chunk in chunks] == edges[:-1], "the ledger has a gap or an overlap", key)
        require(edges[-1] == row["cursor"] <= row["hi"], "the ledger doesn't end at the cursor", key)
        require([chunk["seq"] for chunk in chunks] == [*range(1, row["next_seq"])], "numbers are missing", key)
        epochs = [chunk["epoch"] for chunk in chunks]
        require(epochs == sorted(epochs), "an old epoch wrote after a new one", key, epochs)
        for name in COUNTERS:
            require(row[name] == sum(chunk[name] for chunk in chunks), f"another count of {name}", key)
        for chunk in chunks:
            counted = sum(chunk[name] for name in COUNTERS)
            require(counted == chunk["hi"] - chunk["lo"], "a chunk lost a record", key, chunk["seq"])


def audit_is_exact(before: Snapshot, after: Snapshot) -> None:
    """Every change belongs to one chunk, is of its slice and tenant, and is its job's only one of that record."""
    by_transaction = {chunk["transaction_id"]: chunk for chunk in after.chunks.values()}
    strange = after.audited.keys() - by_transaction.keys()
    require(not strange, "records were changed outside a chunk", strange)
    require(len(by_transaction) == len(after.chunks), "two chunks in one transaction")
    changes: Counter[tuple[int, tuple[str, int]]] = Counter()
    for transaction, chunk in by_transaction.items():
        records = after.audited.get(transaction, [])
        require(len(records) == chunk["changed"], "the ledger counts other changes than the audit", chunk, records)
        job = after.jobs[chunk["job_no"]]
        keys = after.keys[after.selection_of[chunk["job_no"], chunk["round"]]][chunk["lo"] : chunk["hi"]]
        mine = {(job["tenant"], key) for key in keys}
        require(mine.issuperset(records), "a record outside the chunk's slice changed", chunk, records)
        changes.update((chunk["job_no"], record) for record in records)
    doubled = [change for change, times in changes.items() if times > 1]
    require(not doubled, "a job changed a record twice", doubled)
    failed = {(row["job_no"], (after.jobs[row["job_no"]]["tenant"], int(row["key"]))) for row in after.outcomes}
    require(not failed & changes.keys(), "a record is changed and an exception", failed & changes.keys())


def rows_are_exact(before: Snapshot, after: Snapshot) -> None:
    """Each record was changed as often as the audit says."""
    times = Counter((row["tenant"], row["id"]) for row in after.audit)
    wrong = [key for key, row in after.items.items() if row["n"] != times[key]]
    require(not wrong, "a record changed more or less often than the audit says", wrong)


def exceptions_are_exact(before: Snapshot, after: Snapshot) -> None:
    """As many exceptions of each kind are stored as counted; of failures those of the present round."""
    for job in after.jobs.values():
        for kind in ("skipped", "failed", "not_found"):
            mine = [row for row in after.outcomes if (row["job_no"], row["kind"]) == (job["job_no"], kind)]
            found = sum(kind != "failed" or row["round"] == job["round"] for row in mine)
            counted = after.counted(job, kind)
            require(found == counted, f"exceptions {kind}", job["job_id"], found, counted)


def changes_owe(before: Snapshot, after: Snapshot) -> None:
    """Exactly the changed records owe, each of the operation's effects once."""
    expected = {}
    for key, chunk in after.chunks.items():
        changed = sorted(str(number) for _, number in after.audited.get(chunk["transaction_id"], []))
        for effect in effects_of(after.jobs[key[0]]["operation"]) if changed else ():
            expected[(*key, effect)] = changed
    found = {key: sorted(row["keys"]) for key, row in after.owed.items()}
    require(found == expected, "other effects are owed than changes made", found, expected)
    for debt, row in after.owed.items():
        require(row["size"] == len(row["keys"]) >= row["taken_to"], "a debt of another size", debt)
        require(row["taken_to"] >= before.owed.get(debt, row)["taken_to"], "a debt came back", debt)


def deliveries_are_owed(before: Snapshot, after: Snapshot) -> None:
    """What is taken of a debt to a provider is a delivery each; a final one stays, except that done always wins."""
    taken: Counter[tuple[int, int, int, int, str]] = Counter()
    for key, row in after.deliveries.items():
        debt = (row["job_no"], row["round"], row["range_no"], row["seq"], row["effect"])
        taken[debt] += 1
        owed = after.owed[debt]
        require(owed["keys"][row["place"]] == row["key"], "a delivery of another record", key)
        require(row["turn"] <= after.jobs[row["job_no"]]["turn"], "a delivery of a turn to come", key)
        old = before.deliveries.get(key)
        if old is not None:
            _follows(old, row, retried=before.jobs[key[0]]["round"] < after.jobs[key[0]]["round"])
    for debt, row in after.owed.items():
        if row["channel"] == CALLS:
            require(taken[debt] == row["taken_to"], "taken, but no delivery", debt, taken[debt], row["taken_to"])
        if row["channel"] == INDEX:
            require(taken[debt] <= row["taken_to"], "refused, but not taken", debt)
    lost = before.deliveries.keys() - after.deliveries.keys()
    require(not lost, "a delivery is forgotten", lost)


def _follows(old: Row, new: Row, *, retried: bool) -> None:
    key = (new["job_no"], new["effect"], new["key"])
    if retried and old["state"] == "refused" and new["state"] == "later":
        require(new["generation"] == old["generation"] + 1, "a new sending under the old key", key)
        return
    if old["state"] in FINAL_DELIVERIES:
        allowed = new["state"] in (old["state"], "done")
        require(allowed, "a final delivery changed", key, old["state"], new["state"])
    require(old["generation"] == new["generation"], "a generation without a retry", key)
    require(old["doubt"] <= new["doubt"] and old["attempts"] <= new["attempts"], "doubts or attempts fell", key)


RECORD_INVARIANTS = (
    chunks_pass_the_gate,
    ranges_only_go_on,
    ledger_is_exact,
    audit_is_exact,
    rows_are_exact,
    exceptions_are_exact,
    changes_owe,
    deliveries_are_owed,
)
