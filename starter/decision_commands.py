"""The commands about deliveries of which nobody can find out whether they happened."""

import asyncio
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bulklane.contracts.message import Decision, Verdict
from bulklane.starter.complaints import REFUSED, complaints
from bulklane.starter.options import DEFAULT_FOLDER, AsJson, Folder, JobId, Who, Why

if TYPE_CHECKING:
    from bulklane.database.decide import Decided
    from bulklane.database.undecided import Undecided
    from bulklane.starter.client import Client

ONE = "--effect, --key and --doubt name one doubt as `bulklane undecided` shows it; --all takes every one listed now"
EXAMPLES = 10

Effect = Annotated[str | None, typer.Option(help="The effect's name.")]


def undecided(job_id: JobId, effect: Effect = None, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER) -> None:
    """List the deliveries that wait for a decision. Exit code 4: there is no such job."""

    async def ask() -> "list[Undecided]":
        from bulklane.starter.connect import connected

        async with connected(folder) as client:
            return await client.undecided(job_id, effect=effect)

    with complaints():
        _print_undecided(asyncio.run(ask()), as_json=as_json)


def decide(
    job_id: JobId,
    verdict: Annotated[Verdict, typer.Option(help="Send it again under its key, take it as done, or give it up.")],
    effect: Effect = None,
    key: Annotated[str | None, typer.Option(help="The record's key.")] = None,
    doubt: Annotated[int | None, typer.Option(min=1, help="The number of the doubt that was shown.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that is listed now, each for its present doubt.")] = False,
    who: Who = None,
    why: Why = "",
    as_json: AsJson = False,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Decide undecided deliveries, also of a job that is over. Exit code 1: not all could be done; the answer says why.

    A decision hits the doubt that it names, and no newer one.
    """
    from bulklane.starter.arguments import check_texts

    if every == (key is not None) or (key is None) != (doubt is None) or (key is not None and effect is None):
        typer.echo(ONE, err=True)
        raise typer.Exit(REFUSED)

    async def ask() -> "list[Decided]":
        from bulklane.starter.connect import connected

        async with connected(folder) as client:
            named = await _named(client, job_id, verdict, effect, key, doubt)
            return await client.decide(job_id, named, who=client.who if who is None else who, why=why)

    with complaints():
        check_texts({"JOB": job_id, "--effect": effect, "--key": key, "--who": who, "--why": why})
        answers = asyncio.run(ask())
        _print_decided(answers, as_json=as_json)
        if any(answer.refused for answer in answers):
            raise typer.Exit(1)


async def _named(
    client: "Client", job_id: str, verdict: Verdict, effect: str | None, key: str | None, doubt: int | None
) -> list[Decision]:
    if effect is not None and key is not None and doubt is not None:
        return [Decision(effect, key, doubt, verdict)]
    listed = await client.undecided(job_id, effect=effect)
    return [Decision(one.effect, one.key, one.doubt, verdict) for one in listed]


def _print_undecided(listed: "list[Undecided]", *, as_json: bool) -> None:
    from bulklane.starter.show import as_json as json_line
    from bulklane.starter.show import make_console

    console = make_console()
    for one in listed:
        since = one.since.isoformat(sep=" ", timespec="seconds")
        line = f"{one.effect} {one.key}  doubt {one.doubt} since {since}, {one.attempts} attempts on {one.channel}"
        console.print(json_line(asdict(one)) if as_json else f"{line}: {one.answer}")
    if not as_json and not listed:
        console.print("nothing is undecided")


def _print_decided(answers: "list[Decided]", *, as_json: bool) -> None:
    from bulklane.starter.show import as_json as json_line
    from bulklane.starter.show import make_console

    console = make_console()
    if as_json:
        for answer in answers:
            told: dict[str, Any] = {**asdict(answer.decision), "refused": answer.refused}
            console.print(json_line(told))
        return
    done = Counter(str(answer.decision.verdict) for answer in answers if not answer.refused)
    console.print(", ".join(f"{count:,} decided: {verdict}" for verdict, count in done.items()) or "nothing decided")
    refused = [answer for answer in answers if answer.refused]
    for answer in refused[:EXAMPLES]:
        one = answer.decision
        console.print(f"{one.effect} {one.key}, doubt {one.doubt}: {answer.refused}")
    if len(refused) > EXAMPLES:
        console.print(f"and {len(refused) - EXAMPLES:,} more that could not be decided (--json lists all)")
