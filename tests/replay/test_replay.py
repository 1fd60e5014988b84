"""Old histories replay with today's workflows, whatever the hash seed; and a history that doesn't is noticed."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replay.record import SCENARIOS
from tests.replay.replay import recorded, replay

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_every_recorded_history_replays(seed: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.replay.replay"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_scenario_is_recorded() -> None:
    names = {name for name, _ in recorded()}
    assert {f"{scenario}_1" for scenario in SCENARIOS} <= names


def test_an_activity_that_is_no_longer_called_is_noticed() -> None:
    history = json.loads(dict(recorded())["normal_1"])
    for event in history["events"]:
        scheduled = event.get("activityTaskScheduledEventAttributes")
        if scheduled and scheduled["activityType"]["name"] == "release":
            scheduled["activityType"]["name"] = "settle"
    (trouble,) = asyncio.run(replay([("changed", json.dumps(history))]))
    assert "TMPRL1100" in trouble or "settle" in trouble
