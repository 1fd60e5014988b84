"""Makes a preview: reads and checks a request as a submission does, tries its chunk on a sample, and rolls back."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from bulklane.contracts.key import Key, shown
from bulklane.contracts.lane import lane_of
from bulklane.contracts.timing import Timing
from bulklane.database.accept import find_accepted
from bulklane.database.chunk_plan import ChunkPlan, Miscounted
from bulklane.database.engine import limited_transaction
from bulklane.database.failure import Trouble, rule_of, trouble_of
from bulklane.database.fitting import UnfitValue
from bulklane.database.lease import holders
from bulklane.database.past_rate import past_rate
from bulklane.database.plan import chunk_plan
from bulklane.database.trial import HELD_BY_OTHERS, SampledRecord, Trial, TrialHeldUp
from bulklane.operations.channel import ChannelSettings, Endpoint
from bulklane.operations.operation import OperationError, Registry
from bulklane.operations.per_record import place_of
from bulklane.operations.request import InvalidRequest, Problem, Request, read_condition, read_parameters, read_request
from bulklane.operations.search import Found, SearchUnset, sample_search
from bulklane.operations.senders.index_search import SearchTrouble
from bulklane.operations.work import work_of
from bulklane.starter.accept import STATEMENT_SECONDS, measure_request
from bulklane.starter.forecast import forecast_effects, forecast_walk
from bulklane.starter.preview import MOST_SAMPLED, NamedScan, Preview, PreviewUnable
from bulklane.starter.sampling import Sampling
from bulklane.starter.scans import name_scans

_SYNTAX_CLASS = "42"


@dataclass(frozen=True)
class Previewer:
    """What a client knows that asks for previews."""

    engine: Engine
    registry: Registry
    small_max_records: int
    endpoints: Mapping[str, Endpoint]
    channel_settings: Mapping[str, ChannelSettings]

    def preview(self, raw: Mapping[str, Any], sample: int) -> Preview:
        """What the request would do. Nothing is left but lost numbers of two sequences.

        Raises what a submission raises for the request, OperationError for a bug of the operation, and PreviewUnable.
        """
        request = self._read(raw, sample)
        found = _search(request, self.registry, self.endpoints, sample)
        with limited_transaction(self.engine, statement=STATEMENT_SECONDS, transaction=STATEMENT_SECONDS) as connection:
            known = find_accepted(connection, request)
            counted = None if found is None else found.documents
            size = measure_request(connection, request, self.small_max_records, counted)
            owners = holders(connection, request.resources)
            past = past_rate(connection, request.operation)
        with _bugs_named(request.operation):
            plan = _plan(self.registry, request)
        sampling = Sampling(self.engine, request, plan.condition, found, self.small_max_records)
        count, keys = sampling.count(size), sampling.keys(sample)
        records, scans = self._try(plan, request, keys)
        return Preview(
            operation=request.operation,
            tenant=request.tenant,
            selection=request.selection_kind,
            live=request.live,
            lane=lane_of(size, self.small_max_records),
            count=count,
            already=None if known is None else known.job.job_id,
            holders=owners,
            sample=records,
            effects=forecast_effects(
                plan.effects, records, count.likely, self.registry.channels, self.channel_settings
            ),
            estimate=forecast_walk(past, count.likely),
            scans=scans,
        )

    def _read(self, raw: Mapping[str, Any], sample: int) -> Request:
        request = read_request({"job_id": str(uuid4()), **raw}, self.registry)
        if isinstance(sample, bool) or not isinstance(sample, int) or not 1 <= sample <= MOST_SAMPLED:
            raise InvalidRequest([Problem("sample", f"{shown(sample)} is no whole number from 1 to {MOST_SAMPLED}")])
        return request

    def _try(
        self, plan: ChunkPlan, request: Request, keys: Sequence[Key]
    ) -> tuple[list[SampledRecord], list[NamedScan]]:
        # a worker's defaults: no record is held longer than by a chunk
        timing = Timing()
        trial = Trial(self.engine, plan, timing.statement_timeout, timing.transaction_timeout)
        with _bugs_named(request.operation):
            return trial.of(keys), name_scans(trial, request, keys)


def _search(request: Request, registry: Registry, endpoints: Mapping[str, Endpoint], sample: int) -> Found | None:
    try:
        return sample_search(request, registry, endpoints, sample)
    except (SearchTrouble, SearchUnset) as error:
        raise PreviewUnable(f"what the search finds can't be told: {error}") from None


def _plan(registry: Registry, request: Request) -> ChunkPlan:
    operation = registry.operation(request.operation)
    work = work_of(operation, read_parameters(operation, request.parameters))
    condition = read_condition(operation, request.selection_kind, request.selection_spec)
    return chunk_plan(work, request.tenant, condition)


@contextmanager
def _bugs_named(operation: str) -> Iterator[None]:
    """What the operation's own code or statement raises, as an OperationError with its place and no record content."""
    try:
        yield
    except TrialHeldUp as error:
        raise PreviewUnable(str(error)) from None
    except OperationError:
        raise
    except (UnfitValue, Miscounted) as error:
        raise OperationError(f"{operation!r}: {error}") from error
    except DBAPIError as error:
        trouble = trouble_of(error)
        if trouble is Trouble.LOCKED:
            raise PreviewUnable(HELD_BY_OTHERS) from None
        if trouble is not Trouble.BUG:
            raise
        raise OperationError(f"the statement of {operation!r} fails: {_told(error)}") from error
    except Exception as error:
        raise OperationError(f"{operation!r} raised {type(error).__name__} at {place_of(error)}") from error


def _told(error: DBAPIError) -> str:
    code, reason = rule_of(error)
    said = getattr(getattr(error.orig, "diag", None), "message_primary", None)
    # a statement that can't be read or may not be run: what is said of it names tables and columns, never a value
    return f"{said if said and code.startswith(_SYNTAX_CLASS) else reason} ({code})"
