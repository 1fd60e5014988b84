"""Where a `search` selection of an operation asks, and how many documents it finds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bulklane.contracts.key import Key, read_key
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import Operation, Registry
from bulklane.operations.request import InvalidRequest, Problem, Request
from bulklane.operations.senders.index_search import QueryRefused, SearchTrouble, count_documents, sample_documents


@dataclass(frozen=True)
class Searched:
    """An index that can be asked."""

    channel: str
    alias: str
    endpoint: Endpoint


class SearchUnset(LookupError):
    """This process doesn't know where the operation's index is; the message names what to set."""


def searched_index(registry: Registry, operation: Operation, endpoints: Mapping[str, Endpoint]) -> Searched:
    """The index of the operation's documents; raises SearchUnset."""
    effect = operation.searched
    channel: Any = None if effect is None else registry.channels.get(effect.channel)
    if effect is None or channel is None:
        raise SearchUnset(f"the operation {operation.name!r} has no search index")
    endpoint = endpoints.get(effect.channel)
    if endpoint is None:
        variable = f"BULKLANE_CHANNELS__{effect.channel.upper()}__URL"
        raise SearchUnset(f"where the index of {operation.name!r} is isn't known in this process: set {variable}")
    return Searched(effect.channel, channel.sender.alias, endpoint)


def measure_search(request: Request, registry: Registry, endpoints: Mapping[str, Endpoint], most: int) -> int | None:
    """How many documents a request's search finds, counted up to `most` + 1; never inside a transaction.

    None: another selection, or nobody can tell now (then it counts as a large one). Raises InvalidRequest where the
    search engine refuses the query.
    """
    if request.selection_kind != "search":
        return None
    try:
        index = searched_index(registry, registry.operation(request.operation), endpoints)
        return count_documents(index.endpoint, index.alias, request.tenant, request.selection_spec, most)
    except QueryRefused as error:
        raise _invalid(error) from None
    except (SearchTrouble, SearchUnset):
        return None


@dataclass(frozen=True)
class Found:
    """How many documents a search finds, and the keys of some of them, in key order."""

    documents: int
    keys: Sequence[Key]


def sample_search(request: Request, registry: Registry, endpoints: Mapping[str, Endpoint], count: int) -> Found | None:
    """What a request's search finds, with so many keys that are picked by chance; None for another selection.

    Never inside a transaction. Raises SearchTrouble, SearchUnset, and InvalidRequest where the search engine refuses
    the query.
    """
    if request.selection_kind != "search":
        return None
    try:
        index = searched_index(registry, registry.operation(request.operation), endpoints)
        documents, texts = sample_documents(index.endpoint, index.alias, request.tenant, request.selection_spec, count)
    except QueryRefused as error:
        raise _invalid(error) from None
    return Found(documents, sorted(read_key(text, request.records.key_types) for text in texts))


def _invalid(error: QueryRefused) -> InvalidRequest:
    message = f"{error} ({error.reason})" if error.reason else str(error)
    return InvalidRequest([Problem("selection.search", message)])
