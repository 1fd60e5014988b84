"""`bulklane`: the command line. Each command is a function of one of the modules of commands."""

import sys
from pathlib import Path

import typer

from bulklane.starter import (
    channel_commands,
    conformance_command,
    decision_commands,
    index_commands,
    job_commands,
    preview_command,
    stack_commands,
)

app = typer.Typer(
    name="bulklane",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold URLs with passwords
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def bulklane() -> None:
    """Bulk operations over database records, on Temporal.

    Where BULKLANE_DATABASE_URL isn't set, commands speak to the stack that `bulklane up` runs in the folder.
    """
    here = str(Path.cwd())
    if here not in sys.path:  # a team's modules stand in the current folder, as for `python -m`
        sys.path.insert(0, here)


for _command in (stack_commands.up, stack_commands.env, stack_commands.install):
    app.command(rich_help_panel="This machine")(_command)
app.command(rich_help_panel="Jobs")(preview_command.preview)
for _name in ("submit", "status", "watch", "pause", "resume", "cancel", "throttle", "retry", "verify"):
    app.command(rich_help_panel="Jobs")(getattr(job_commands, _name))
app.add_typer(channel_commands.app, name="channels", rich_help_panel="Jobs")
for _decision in (decision_commands.undecided, decision_commands.decide):
    app.command(rich_help_panel="Jobs")(_decision)
app.command(rich_help_panel="This machine")(conformance_command.check_channel)
for _name in ("reconcile", "reindex"):
    app.command(rich_help_panel="Search indexes")(getattr(index_commands, _name))


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
