"""What an index is compared with and filled from: the one table whose records a channel's documents stand for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement

from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import IndexEffect, OperationError, Records, Registry
from bulklane.operations.senders.search_index import SearchIndex


@dataclass(frozen=True)
class IndexSource:
    """A channel's index, and the rows behind it."""

    channel: str
    index: SearchIndex
    endpoint: Endpoint
    records: Records
    document: Mapping[str, ColumnElement[Any]]


def find_source(registry: Registry, name: str, endpoints: Mapping[str, Endpoint]) -> IndexSource:
    """By the name of a channel, or of an operation with one index effect; raises OperationError."""
    effects = [
        (operation, effect)
        for operation in registry.operations.values()
        for effect in operation.effects
        if isinstance(effect, IndexEffect)
    ]
    channels = {effect.channel for operation, effect in effects if name in (effect.channel, operation.name)}
    if len(channels) != 1:
        known = ", ".join(sorted({effect.channel for _, effect in effects})) or "none"
        why = f"indexes on {len(channels)} channels" if channels else "is neither a search channel nor indexes anything"
        raise OperationError(f"{name!r} {why}: name one of the search channels ({known})")
    channel = channels.pop()
    mine = [(operation, effect) for operation, effect in effects if effect.channel == channel]
    operation, effect = mine[0]
    for other, its in mine[1:]:
        if other.records.table is not operation.records.table or _shape(its) != _shape(effect):
            raise OperationError(
                f"{other.name!r} and {operation.name!r} write different documents to the channel {channel!r}: an index"
                " holds one document for each row of one table"
            )
    index = registry.channels[channel].sender
    if not isinstance(index, SearchIndex):
        raise OperationError(f"the channel {channel!r} is no SearchIndex: only its own sender knows how it is rebuilt")
    if channel not in endpoints:
        raise OperationError(
            f"where the channel {channel!r} goes isn't known: set BULKLANE_CHANNELS__{channel.upper()}__URL"
        )
    return IndexSource(channel, index, endpoints[channel], operation.records, effect.document)


def _shape(effect: IndexEffect) -> dict[str, str]:
    return {name: str(column) for name, column in effect.document.items()}
