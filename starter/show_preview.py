"""A preview on the command line: what it says in lines, and the sample as a table."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bulklane.database.trial import SampledRecord
from bulklane.starter.pace import span
from bulklane.starter.preview import EffectForecast, NamedScan, Preview
from bulklane.starter.shown import shown, shown_lines

BODIES = 3
_STYLES = {"changed": "green", "failed": "bold red"}


def preview_json(preview: Preview) -> dict[str, Any]:
    """A preview as JSON values; what JSON has no form for is written as text."""
    sample = [{**asdict(record), "differing": record.differing} for record in preview.sample]
    plain: dict[str, Any] = _plain({**asdict(preview), "sample": sample, "outcomes": preview.outcomes})
    return plain


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(name): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case datetime():
            return value.isoformat()
        case bytes():
            return value.hex()
    return str(value)


def print_preview(console: Console, preview: Preview) -> None:
    """All of it."""
    for name, value in _facts(preview):
        if value:
            console.print(f"{name:<14}{value}")
    if preview.sample:
        console.print(_table(preview))
    for record in preview.sample[:BODIES]:
        for owed in record.owes:
            if owed.body is not None:
                console.print(f"{record.key} owes {owed.effect} to {owed.channel}: {owed.body}")


def _facts(preview: Preview) -> list[tuple[str, str]]:
    how = ", live" if preview.live else ""
    looked_at = ", ".join(f"{count:,} {_words(outcome)}" for outcome, count in preview.outcomes.items())
    owners = "; ".join(
        f"{one.resource} is owned by job {one.job_id} ({one.state}) since {one.since.isoformat(timespec='seconds')}"
        for one in preview.holders
    )
    return [
        ("preview", f"{preview.operation} for {preview.tenant}, {preview.selection}{how}: nothing was stored"),
        ("records", _count(preview)),
        ("lane", preview.lane),
        ("accepted", f"the same request already, as job {preview.already}" if preview.already else ""),
        ("resources", owners or "free"),
        ("sample", looked_at or "no record"),
        *(("would owe", _effect(effect)) for effect in preview.effects),
        ("walk", _walk(preview)),
        *(("SCAN" if not one.expected else "scan", _scan(one)) for one in preview.scans),
        ("indexes", "lead to the rows" if not preview.scans else ""),
    ]


def _count(preview: Preview) -> str:
    count = preview.count
    about = "" if count.about is None else f", the planner thinks about {count.about:,}"
    parts = [f"{count.records:,}" if count.exact else f"more than {count.records:,}{about}"]
    if count.present is not None and count.present != count.records:
        parts.append(f"{count.present:,} of them are there now")
    if count.duplicates:
        parts.append(f"{count.duplicates:,} ids came more than once")
    return "; ".join(parts)


def _effect(effect: EffectForecast) -> str:
    took = "" if effect.seconds is None else f", which the channel's rate makes last {span(effect.seconds)}"
    counts = f"{effect.in_sample:,} in the sample, about {effect.in_all:,} in all"
    return f"{effect.effect} to {effect.channel}: {counts}{took}"


def _walk(preview: Preview) -> str:
    estimate = preview.estimate
    if estimate.seconds is None:
        return "no job of this operation has run yet, so nothing is known of its rate"
    return f"about {span(estimate.seconds)} at {estimate.rows_per_second:,.0f} rows/s, as the last {estimate.jobs} jobs"


def _scan(named: NamedScan) -> str:
    scan = named.scan
    told = f"the {named.statement} reads all of {scan.table} ({scan.reads:,} rows to find {scan.finds:,})"
    return f"{told}, as every record is asked for" if named.expected else f"{told}; {named.advice}"


def _table(preview: Preview) -> Table:
    table = Table(title=f"{len(preview.sample)} records, changed and rolled back", title_justify="left")
    for heading in ("key", "outcome", "before → after"):
        table.add_column(heading, overflow="fold")
    for record in preview.sample:
        why = ": ".join(filter(None, [record.code, record.reason]))
        outcome = Text(shown(" ".join(filter(None, [_words(record.outcome), f"({why})" if why else ""]))))
        outcome.stylize(_STYLES.get(record.outcome, ""))
        table.add_row(Text(shown(record.key)), outcome, Text(shown_lines(_difference(record))))
    return table


def _difference(record: SampledRecord) -> str:
    before, after = record.before or {}, record.after
    if record.outcome == "changed" and after is None:
        return "deleted: " + ", ".join(f"{name} {_plain(value)}" for name, value in before.items())
    return "\n".join(f"{name}: {_plain(before[name])} → {_plain((after or {})[name])}" for name in record.differing)


def _words(outcome: str) -> str:
    return outcome.replace("_", " ")
