"""The command that checks a channel's sender."""

from typing import Annotated

import typer

from bulklane.starter.complaints import complaints
from bulklane.starter.shown import shown_lines


def check_channel(name: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")]) -> None:
    """Check what a channel's sender makes of everything that its outside system may do. Exit code 1: it errs.

    A scripted server on this machine stands in the system's place: nothing is sent anywhere. The channel's `sample`
    has the system's own answers.
    """
    with complaints():
        from bulklane.operations.conformance.check import check_channel as check
        from bulklane.operations.operation import OperationError
        from bulklane.operations.registry import load_registry
        from bulklane.starter.settings import StackSettings

        channels = load_registry(StackSettings().modules()).channels
        channel = channels.get(name)
        if channel is None:
            raise OperationError(f"no channel is named {name!r}; known: {', '.join(sorted(channels)) or 'none'}")
        findings = check(channel)
        for finding in findings:
            typer.echo(shown_lines(str(finding)))
        typer.echo(f"channel {name}: {len(findings)} findings" if findings else f"channel {name}: nothing is wrong")
        if findings:
            raise typer.Exit(1)
