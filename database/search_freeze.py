"""The freeze of a search: what the walk over the index finds is stored page by page, then frozen by one statement.

No transaction is open while the search engine is asked. The attempt's number is the fencing token: an attempt that was
lost stores nothing beside a later one, and its pages go when that one begins.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from bulklane.contracts.key import Key
from bulklane.database.record import unnested
from bulklane.database.selection import SelectionState, StoredSelection, freeze_selected, lock_selection
from bulklane.database.tables import job, key_column, owed, search_page, selection


class WalkSuperseded(RuntimeError):
    """A later attempt searches, or the selection is frozen: this attempt may store nothing. `epoch`: what stands."""

    def __init__(self, epoch: int) -> None:
        super().__init__("a later attempt searches for this selection, or it is frozen")
        self.epoch = epoch


_BEGIN = (
    update(selection)
    .where(selection.c.selection_no == bindparam("number"))
    .values(epoch=bindparam("mine"), owed_at_freeze=bindparam("debt"), selected_at=func.clock_timestamp())
)
_FORGET = delete(search_page).where(search_page.c.selection_no == bindparam("number"))
_FOUND = select(func.coalesce(func.sum(search_page.c.size), 0)).where(search_page.c.selection_no == bindparam("number"))
_FOLDED = (
    update(selection).where(selection.c.selection_no == bindparam("number")).values(duplicates=bindparam("folded"))
)
_OWED = (
    select(func.coalesce(func.sum(owed.c.size - owed.c.taken_to), 0))
    .join(job, job.c.job_no == owed.c.job_no)
    .where(
        owed.c.channel == bindparam("of_channel"), owed.c.taken_to < owed.c.size, job.c.tenant == bindparam("of_tenant")
    )
)


def count_owed_to(connection: Connection, channel: str, tenant: str) -> int:
    """How many effects of the tenant's jobs are still owed to an index: its documents may be older than their rows."""
    return int(connection.execute(_OWED, {"of_channel": channel, "of_tenant": tenant}).scalar_one())


def begin_walk(connection: Connection, selection_no: int, epoch: int, channel: str, tenant: str) -> None:
    """Take the selection for this attempt, without pages. Raises WalkSuperseded.

    What is owed is counted before the index is refreshed: afterwards an effect could be missed that was sent between.
    """
    _own(connection, selection_no, epoch)
    connection.execute(_FORGET, {"number": selection_no})
    debt = count_owed_to(connection, channel, tenant)
    connection.execute(_BEGIN, {"number": selection_no, "mine": epoch, "debt": debt})


def store_page(connection: Connection, stored: StoredSelection, epoch: int, number: int, keys: Sequence[Key]) -> None:
    """Store the keys of one page. Raises WalkSuperseded."""
    _own(connection, stored.selection_no, epoch)
    columns: list[list[Any]] = [list(column) for column in zip(*keys, strict=True)]
    names = [key_column(position, key_type) for position, key_type in enumerate(stored.key_types, 1)]
    row = {"selection_no": stored.selection_no, "no": number, "size": len(keys)}
    connection.execute(insert(search_page), row | dict(zip(names, columns, strict=True)))


def forget_pages(connection: Connection, selection_no: int, epoch: int) -> None:
    """Delete the pages of an attempt that ends without a freeze; nothing where a later one has taken over."""
    if lock_selection(connection, selection_no).epoch == epoch:
        connection.execute(_FORGET, {"number": selection_no})


def freeze_pages(connection: Connection, stored: StoredSelection, epoch: int) -> int:
    """Freeze a locked selection's pages into blocks in key order, each key once; how many there are.

    Keys that came twice are counted as duplicates. Raises WalkSuperseded.
    """
    if stored.epoch != epoch:
        raise WalkSuperseded(stored.epoch)
    names = [key_column(position, key_type) for position, key_type in enumerate(stored.key_types, 1)]
    keys = [f"key{position}" for position in range(1, len(names) + 1)]
    rows = unnested([search_page.c[name] for name in names], keys, "found").lateral()
    distinct = (
        select(*(rows.c[key] for key in keys))
        .select_from(search_page.join(rows, search_page.c.selection_no == search_page.c.selection_no))
        .where(search_page.c.selection_no == stored.selection_no)
        .distinct()
    )
    number = {"number": stored.selection_no}
    found = int(connection.execute(_FOUND, number).scalar_one())
    total = freeze_selected(connection, stored.selection_no, stored.key_types, distinct)
    connection.execute(_FOLDED, number | {"folded": found - total})
    connection.execute(_FORGET, number)
    return total


def _own(connection: Connection, selection_no: int, epoch: int) -> None:
    stored = lock_selection(connection, selection_no)
    if stored.state is SelectionState.FROZEN or stored.epoch > epoch:
        raise WalkSuperseded(stored.epoch)
