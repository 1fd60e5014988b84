"""The commands about channels: what holds or blocks them, and going on."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from bulklane.starter.complaints import complaints
from bulklane.starter.options import DEFAULT_FOLDER, AsJson, Folder

if TYPE_CHECKING:
    from pathlib import Path

    from bulklane.starter.channels import ChannelStatus

app = typer.Typer(help="Show the channels: what is owed, blocked and held there.", invoke_without_command=True)


@app.callback()
def channels(context: typer.Context, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER) -> None:
    """Show the channels: what is owed, blocked and held there. Limits: as the channel's module declares them."""
    if context.invoked_subcommand is not None:
        return
    with complaints():
        from bulklane.starter.show import make_console
        from bulklane.starter.show_channels import channels_json, print_channels

        found = asyncio.run(_list(folder))
        if as_json:
            make_console().print(channels_json(found))
        else:
            print_channels(make_console(), found)


@app.command()
def resume(
    channel: Annotated[str, typer.Argument(help="The channel's name.")], folder: Folder = DEFAULT_FOLDER
) -> None:
    """End a channel's hold, once what it was held for is put right. Exit code 4: there is no such channel."""
    with complaints():
        resumed = asyncio.run(_resume(folder, channel))
    said = "goes on within two seconds" if resumed else "wasn't held: nothing is changed"
    typer.echo(f"channel {channel} {said}")


async def _list(folder: "Path") -> "list[ChannelStatus]":
    from bulklane.starter.connect import connected

    async with connected(folder, operations=True) as client:
        return await client.channels()


async def _resume(folder: "Path", channel: str) -> bool:
    from bulklane.starter.connect import connected

    async with connected(folder, operations=True) as client:
        return await client.resume_channel(channel)
