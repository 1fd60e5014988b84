"""What is committed at one moment: every row of interest, read by one statement."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, text

from bulklane.contracts.job import OVER_STATES

Row = dict[str, Any]

_TABLES = {
    "jobs": "bulklane.job",
    "ranges": 'bulklane."range"',
    "leases": "bulklane.lease",
    "wishes": "bulklane.wish",
    "messages": "bulklane.wish_message",
    "chunks": "bulklane.chunk",
    "outcomes": "bulklane.outcome",
    "owed": "bulklane.owed",
    "deliveries": "bulklane.delivery",
    "blocks": "bulklane.block",
    "audit": "item_audit",
    "items": "item",
}
_PARTS = ", ".join(f"'{name}', (SELECT coalesce(json_agg(x), '[]') FROM {table} x)" for name, table in _TABLES.items())
_READ = text(f"SELECT json_build_object({_PARTS})")


@dataclass(frozen=True)
class Snapshot:
    """The committed rows."""

    jobs: dict[int, Row]
    ranges: dict[tuple[int, int, int], Row]
    leases: dict[str, Row]
    wishes: dict[int, Row]
    messages: dict[tuple[int, str], Row]
    chunks: dict[tuple[int, int, int, int], Row]
    outcomes: list[Row]
    owed: dict[tuple[int, int, int, int, str], Row]
    deliveries: dict[tuple[int, str, str], Row]
    selection_of: dict[tuple[int, int], int]
    keys: dict[int, list[int]]
    audit: list[Row]
    items: dict[tuple[str, int], Row]

    def ranges_of(self, job: Row) -> list[Row]:
        """The ranges of the job's present round."""
        return [row for row in self.ranges.values() if (row["job_no"], row["round"]) == (job["job_no"], job["round"])]

    def counted(self, job: Row, counter: str) -> int:
        """The job's records of a kind; a round re-opens what failed before, so only the last one's failures stand."""
        rows = [row for key, row in self.ranges.items() if key[0] == job["job_no"]]
        return sum(row[counter] for row in rows if counter != "failed" or row["round"] == job["round"])

    def chunks_of(self, *begin: int) -> list[Row]:
        """The ledger of a job, a round or a range, in order."""
        return [row for key, row in sorted(self.chunks.items()) if key[: len(begin)] == begin]

    def epochs(self, job_no: int) -> int:
        """The sum over all of the job's ranges."""
        return sum(row["epoch"] for row in self.ranges.values() if row["job_no"] == job_no)

    def owes(self, job_no: int) -> bool:
        """Whether any effect of the job isn't final."""
        untaken = any(row["job_no"] == job_no and row["taken_to"] < row["size"] for row in self.owed.values())
        return untaken or any(
            row["job_no"] == job_no and row["state"] in ("sending", "later", "unknown")
            for row in self.deliveries.values()
        )

    @cached_property
    def audited(self) -> dict[str, list[tuple[str, int]]]:
        """By transaction: which records it changed."""
        found = defaultdict(list)
        for row in self.audit:
            found[row["xid"]].append((row["tenant"], row["id"]))
        return dict(found)


def is_over(job: Row) -> bool:
    """Whether the job's state is terminal."""
    return job["state"] in OVER_STATES


def read_snapshot(connection: Connection, before: Snapshot | None) -> Snapshot:
    """Everything that is committed now. What an earlier round worked on is known from the snapshot before."""
    found: dict[str, list[Row]] = connection.execute(_READ).scalar_one()
    keys: dict[int, list[int]] = defaultdict(list)
    for row in sorted(found["blocks"], key=lambda block: block["no"]):
        keys[row["selection_no"]] += row["key1_bigint"]
    for row in found["jobs"]:
        row["owns_nothing"] = row["round"] > 1 and not keys.get(row["selection_no"])
    selection_of = {(row["job_no"], row["round"]): row["selection_no"] for row in found["jobs"]}
    return Snapshot(
        jobs={row["job_no"]: row for row in found["jobs"]},
        ranges={(row["job_no"], row["round"], row["no"]): row for row in found["ranges"]},
        leases={row["resource"]: row for row in found["leases"]},
        wishes={row["job_no"]: row for row in found["wishes"]},
        messages={(row["job_no"], row["message_id"]): row for row in found["messages"]},
        chunks={(row["job_no"], row["round"], row["range_no"], row["seq"]): row for row in found["chunks"]},
        outcomes=found["outcomes"],
        owed={(row["job_no"], row["round"], row["range_no"], row["seq"], row["effect"]): row for row in found["owed"]},
        deliveries={(row["job_no"], row["effect"], row["key"]): row for row in found["deliveries"]},
        selection_of=({} if before is None else before.selection_of) | selection_of,
        keys=keys,
        audit=found["audit"],
        items={(row["tenant"], row["id"]): row for row in found["items"]},
    )
