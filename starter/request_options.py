"""The options that say what a job is to do, for `submit` and `preview` alike, and the request that they make."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

Operation = Annotated[str, typer.Argument(help="The operation's name.")]
Tenant = Annotated[str, typer.Option(help="Whose records.")]
Ids = Annotated[list[str] | None, typer.Option(help="Ids, separated by commas.")]
IdsFile = Annotated[
    list[str] | None,
    typer.Option(help="A file with an id on each line (a JSON array where a key has several columns); - is stdin."),
]
Filters = Annotated[list[str] | None, typer.Option("--filter", help="A filter as JSON.")]
Searches = Annotated[
    list[str] | None, typer.Option("--search", help="A query on the operation's search index, as JSON.")
]
Every = Annotated[bool, typer.Option("--all", help="Every record of the tenant.")]
Live = Annotated[
    bool, typer.Option("--live", help="With --filter or --all: walk in key order, without freezing keys first.")
]
Parameters = Annotated[str | None, typer.Option(help="All parameters as a JSON object.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME=VALUE", help="One parameter; the value is JSON, or else a text. Repeatable."),
]
WantedJobId = Annotated[str | None, typer.Option("--job-id", help="The id that the job is to have.")]
IdempotencyKey = Annotated[str | None, typer.Option(help="Repeating the command with the same key gives the same job.")]
Parallelism = Annotated[int | None, typer.Option(help="How many ranges are walked side by side.")]
Priority = Annotated[int | None, typer.Option(help="1 (first) to 5.")]


def read_options(
    ids: Sequence[str] | None,
    ids_file: Sequence[str] | None,
    filters: Sequence[str] | None,
    searches: Sequence[str] | None,
    parameters: str | None,
    assignments: Sequence[str] | None,
    options: Mapping[str, Any],
    *,
    every: bool,
    live: bool,
) -> dict[str, Any]:
    """The request; of `options` what is given. Raises InvalidRequest."""
    from bulklane.starter.arguments import check_texts, read_parameters, read_selection

    check_texts({_name(name): value for name, value in options.items() if isinstance(value, str)})
    selection = read_selection(ids or [], ids_file or [], filters or [], searches or [], every=every)
    return {
        "selection": selection | ({"live": True} if live else {}),
        "parameters": read_parameters(parameters, assignments or []),
        **{name: value for name, value in options.items() if value is not None},
    }


def with_keys(request: Mapping[str, Any], operations: Mapping[str, Any]) -> dict[str, Any]:
    """The request as its operation's keys are to be read. Raises InvalidRequest."""
    from bulklane.starter.arguments import split_keys

    known = operations.get(request["operation"])
    if known is None or len(known.records.key) == 1:
        return dict(request)
    return {**request, "selection": split_keys(request["selection"])}


def _name(option: str) -> str:
    return "OPERATION" if option == "operation" else f"--{option.replace('_', '-')}"
