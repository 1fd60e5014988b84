"""Replays each recorded history: `python -m tests.replay.replay`; names those that came out otherwise, and fails."""

import asyncio
import logging
import sys
from collections.abc import Iterable
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from bulklane.workflows.bulk_job import BulkJob
from bulklane.workflows.deliver_owed import DeliverOwed
from tests.workflow.serving import RUNNER

FOLDER = Path(__file__).parent / "histories"


async def replay(histories: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each (name, history as JSON) that the present workflows don't replay."""
    replayer = Replayer(workflows=[BulkJob, DeliverOwed], workflow_runner=RUNNER)
    troubles = []
    for name, text in histories:
        history = WorkflowHistory.from_json(name, text)
        done = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if done.replay_failure is not None:
            troubles.append(f"{name}: {done.replay_failure}")
    return troubles


def recorded() -> list[tuple[str, str]]:
    """Every history in the folder, by name."""
    return [(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.json"))]


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    found = asyncio.run(replay(recorded()))
    sys.stdout.write("\n".join(found))
    sys.exit(1 if found else 0)
