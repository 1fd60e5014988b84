"""The balance of a job, against the outside: input, audit, index and provider. Never against our counters alone."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine

from bulklane.contracts.effect import DeliveryState, idempotency_key, key_prefix
from bulklane.database import balance, effect
from bulklane.database.job import Job, JobUnknown, find_job
from bulklane.database.selection import StoredSelection, read_selection
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import CallEffect, IndexEffect, Operation, Registry, Verification
from bulklane.operations.senders.index_reader import read_index
from bulklane.starter.status import JobStatus, read_status

EXAMPLES = 5


@dataclass(frozen=True)
class Check:
    """One line of the balance."""

    name: str
    expected: str
    found: str
    holds: bool
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """The whole balance."""

    job_id: str
    checks: Sequence[Check]

    @property
    def holds(self) -> bool:
        """Whether every line holds."""
        return all(check.holds for check in self.checks)


class NotVerifiable(RuntimeError):
    """The job can't be verified here; the message says what is missing."""


@dataclass
class _Facts:
    """What was read of a job, its records and its surroundings."""

    job: Job
    status: JobStatus
    operation: Operation
    verification: Verification
    selected: list[str]
    exceptions: Mapping[str, str]
    changes: Counter[str]
    versions: Mapping[str, int]
    leases: int
    owed: int
    generations: int
    deliveries: Mapping[tuple[str, str], DeliveryState]
    selection: StoredSelection
    checks: list[Check] = field(default_factory=list)

    @property
    def changed(self) -> set[str]:
        """The keys that must have been changed once: selected, and no exception."""
        return set(self.selected) - set(self.exceptions)

    @property
    def not_started(self) -> int:
        """How many of the selected keys were not come to; a live walk has selected only what it came to."""
        return 0 if self.selection.live else self.status.not_started or 0


def verify_job(engine: Engine, registry: Registry, job_id: str, endpoints: Mapping[str, Endpoint]) -> Report:
    """Read everything anew and compare. `endpoints`: by channel, where its system is.

    Raises JobUnknown, and NotVerifiable where the operation's module supplies no readers or an endpoint is missing.
    """
    facts = _read(engine, registry, job_id)
    _check_input(facts)
    _check_changes(facts)
    for declared in facts.operation.effects:
        endpoint = endpoints.get(declared.channel)
        if endpoint is None:
            raise NotVerifiable(f"where the channel {declared.channel!r} goes isn't known; set its URL")
        if isinstance(declared, IndexEffect):
            _check_index(facts, registry, declared, endpoint)
        else:
            _check_provider(facts, declared, endpoint)
    _check_end(facts)
    return Report(job_id, facts.checks)


def _read(engine: Engine, registry: Registry, job_id: str) -> _Facts:
    # one snapshot for all that is compared with each other
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        job = find_job(connection, job_id)
        if job is None:
            raise JobUnknown(f"there is no job {job_id!r}")
        operation = registry.operation(job.operation)
        verification = operation.verification
        if verification is None:
            raise NotVerifiable(f"the operation {operation.name!r} supplies no `verification` to compare with")
        until = balance.next_accepted_at(connection, job.job_no)
        audit = verification.audit(job.tenant)
        audited = balance.changes(connection, audit, job.job_no, job.accepted_at, until)
        selection = read_selection(connection, job.first_selection_no)
        exceptions = balance.exceptions(connection, job.job_no)
        if selection.live:
            selected = [*balance.changed_by(connection, audit, job.job_no), *exceptions]
        else:
            selected = balance.selected_keys(connection, selection.selection_no, selection.key_types)
        return _Facts(
            job=job,
            status=read_status(connection, job_id),
            operation=operation,
            verification=verification,
            selected=selected,
            exceptions=exceptions,
            changes=Counter(change.key for change in audited),
            versions=balance.row_versions(connection, operation.records, job.tenant),
            leases=balance.leases_left(connection, job.job_no),
            owed=effect.count_owed(connection, job.job_no),
            deliveries=balance.delivery_exceptions(connection, job.job_no),
            generations=balance.last_generation(connection, job.job_no),
            selection=selection,
        )


def _check_input(facts: _Facts) -> None:
    selected = set(facts.selected)
    doubled = len(facts.selected) - len(selected)
    _add(facts, "keys selected twice", 0, doubled)
    expected = facts.verification.expected(facts.job.tenant, facts.selection.kind, facts.selection.spec)
    if expected is not None:
        _check_expected(facts, expected, selected)
    status = facts.status
    outcomes = status.changed + status.skipped + status.failed + status.not_found + facts.not_started
    _add(facts, "outcomes add up to the selection", len(selected), outcomes)
    counted = Counter(facts.exceptions.values())
    reported = {"skipped": status.skipped, "failed": status.failed, "not_found": status.not_found}
    _add(facts, "exceptions stored as counted", _shown(reported), _shown({name: counted[name] for name in reported}))


def _check_expected(facts: _Facts, expected: set[str], selected: set[str]) -> None:
    missing, extra = expected - selected, selected - expected
    # a job that was called off before its selection was frozen has selected nothing
    is_selected = facts.status.total is not None
    if facts.selection.live:
        # what a live walk has to come to isn't known where it was called off; and it may meet records made meanwhile
        is_selected, extra = is_selected and not facts.status.not_started, set()
    if is_selected:
        _add(facts, "records of the input selected", len(expected), len(expected - missing), _examples(missing))
        _add(facts, "records selected beyond the input", 0, len(extra), _examples(extra))


def _check_changes(facts: _Facts) -> None:
    """Each record changed exactly once while the job had its turn, by the audit that knows nothing of Bulklane."""
    changed = facts.changed
    missed = {key for key in changed if facts.changes[key] == 0}
    twice = {key for key in changed if facts.changes[key] > 1}
    stray = {key for key in facts.changes if key not in changed}
    _add(facts, "records changed", len(changed) - facts.not_started, len(changed) - len(missed), _examples(missed))
    _add(facts, "records changed twice", 0, len(twice), _examples(twice))
    _add(facts, "other records changed", 0, len(stray), _examples(stray))


def _check_index(facts: _Facts, registry: Registry, declared: IndexEffect, endpoint: Endpoint) -> None:
    alias = registry.channels[declared.channel].sender.alias
    documents = read_index(endpoint, alias, facts.job.tenant)
    touched = {key for key in facts.changed if facts.changes[key] > 0}
    live = {key: one.version for key, one in documents.items() if not one.deleted}
    missing = {key for key in touched if key in facts.versions and key not in live}
    stale = {key for key, version in live.items() if key in facts.versions and version != facts.versions[key]}
    extra = {key for key in live if key not in facts.versions}
    name = f"index {alias}"
    _add(facts, f"{name}: documents missing", 0, len(missing), _examples(missing))
    _add(facts, f"{name}: versions other than the row's", 0, len(stale), _examples(stale))
    _add(facts, f"{name}: documents without a row", 0, len(extra), _examples(extra))


def _check_provider(facts: _Facts, declared: CallEffect, endpoint: Endpoint) -> None:
    job_id = facts.job.job_id
    record_of = {
        idempotency_key(job_id, declared.name, key, generation): key
        for key in facts.selected
        for generation in range(1, facts.generations + 1)
    }
    own_prefix = key_prefix(job_id, declared.name)
    applied: Counter[str] = Counter()
    extra = set()
    for key, times in facts.verification.applications(declared.channel, endpoint.url, key_prefix(job_id)).items():
        if key in record_of:
            applied[record_of[key]] += times
        elif key.startswith(own_prefix) and times:
            extra.add(key)
    changed = {key for key in facts.changed if facts.changes[key] > 0}
    extra |= {key for key in applied if key not in changed and applied[key] > 0}
    states = {key: state for (effect, key), state in facts.deliveries.items() if effect == declared.name}
    refused = {key for key in changed if states.get(key) is DeliveryState.REFUSED}
    undecided = {key for key in changed if states.get(key) is DeliveryState.UNDECIDED}
    wanted = changed - states.keys()
    once = {key for key in wanted if applied[key] == 1}
    missing = {key for key in wanted if applied[key] == 0}
    twice = {key for key in changed if applied[key] > 1}
    denied = {key for key in refused if applied[key] > 0}
    name = f"provider {declared.channel}"
    _add(facts, f"{name}: applied once", len(wanted), len(once))
    _add(facts, f"{name}: missing", 0, len(missing), _examples(missing))
    _add(facts, f"{name}: applied twice", 0, len(twice), _examples(twice))
    _add(facts, f"{name}: refused, yet applied", 0, len(denied), _examples(denied))
    _add(facts, f"{name}: undecided", 0, len(undecided), _examples(undecided))
    _add(facts, f"{name}: for other records", 0, len(extra), _examples(extra))


def _check_end(facts: _Facts) -> None:
    _add(facts, "job is over", "yes", "yes" if facts.job.over else f"no, {facts.job.state}")
    _add(facts, "effects owed", 0, facts.owed)
    _add(facts, "leases left", 0, facts.leases)


def _add(facts: _Facts, name: str, expected: Any, found: Any, detail: str = "") -> None:
    facts.checks.append(Check(name, str(expected), str(found), expected == found, "" if expected == found else detail))


def _examples(keys: Iterable[str]) -> str:
    ordered = sorted(keys)
    more = f" and {len(ordered) - EXAMPLES} more" if len(ordered) > EXAMPLES else ""
    return ", ".join(ordered[:EXAMPLES]) + more


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
