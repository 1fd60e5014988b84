"""Names the statements of a request that would read a large table from end to end."""

from collections.abc import Sequence

from bulklane.contracts.key import Key
from bulklane.database.explain import Scan
from bulklane.database.index_check import chunk_scans, live_scans, selection_scans
from bulklane.database.live_chain import LivePlan
from bulklane.database.trial import Trial
from bulklane.operations.live import columns_read
from bulklane.operations.request import Request
from bulklane.starter.preview import NamedScan


def name_scans(trial: Trial, request: Request, keys: Sequence[Key]) -> list[NamedScan]:
    """Of the selection's statement, where one selects, and of the chunk's. Raises TrialHeldUp."""
    return [*_of_selection(trial, request), *_of_chunk(trial, request, keys)]


def _of_selection(trial: Trial, request: Request) -> list[NamedScan]:
    if request.keys is not None or request.condition is None:
        return []
    plan = trial.plan
    with trial.patiently() as connection:
        scans = selection_scans(connection, plan.records, plan.tenant, plan.condition, live=request.live)
    filtered = [column.name for column in columns_read(plan.condition)]
    advice = _index(request, filtered or [column.name for column in request.records.key])
    # every record of the tenant's: mostly a scan is what is asked for
    return [NamedScan("selection", scan, not filtered, "" if not filtered else advice) for scan in scans]


def _of_chunk(trial: Trial, request: Request, keys: Sequence[Key]) -> list[NamedScan]:
    # to be told a plan takes no row; where a function decides, it is shown one record, which is held for it
    transact = trial.transact if trial.plan.decide else trial.patiently
    with transact() as connection:
        scans: list[Scan] = []
        if not request.live:
            scans = chunk_scans(connection, trial.plan, keys[:1] if trial.plan.decide else keys)
        elif keys:
            live = LivePlan.on(connection, trial.plan, columns_read(trial.plan.condition))
            scans = live_scans(connection, live, keys[0], keys[-1])
    advice = _index(request, [column.name for column in request.records.key])
    return [NamedScan("chunk", scan, False, advice) for scan in scans]


def _index(request: Request, columns: Sequence[str]) -> str:
    records = request.records
    names = dict.fromkeys([str(records.tenant.name), *columns])
    return f"an index on {records.table.fullname} ({', '.join(names)}) would lead to the rows"
