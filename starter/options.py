"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[
    Path,
    typer.Option("--folder", envvar="BULKLANE_FOLDER", help="The folder of the stack on this machine."),
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `submit` printed it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Who = Annotated[str | None, typer.Option(help="Who asks; by default BULKLANE_WHO or the account's name.")]
Why = Annotated[str, typer.Option(help="Why; kept with the job.")]
DEFAULT_FOLDER = Path(".run")
