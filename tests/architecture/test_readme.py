"""The README's operation is the file it names, and its commands are the Makefile's and the command line's."""

import re
from pathlib import Path

from typer.testing import CliRunner

from bulklane.operations.registry import load_registry
from bulklane.starter.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_code_is_the_example() -> None:
    blocks = [block.split("```")[0] for block in README.split("```python\n")[1:]]
    files = [ROOT / "examples/accounts" / name for name in ("operation.py", "tidy.py", "start.py")]
    assert blocks == [path.read_text() for path in files]


def test_the_example_loads() -> None:
    registry = load_registry(["examples.accounts.development"])
    assert sorted(registry.operations) == ["close_accounts", "tidy_addresses"]
    assert list(registry.channels) == ["mailing"]


def test_every_make_target_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE)) <= targets
    assert {"demo", "up", "test", "check", "cases", "bench", "clean"} <= targets


def test_every_command_is_there() -> None:
    help_text = CliRunner().invoke(app, ["--help"]).output
    named = set(re.findall(r"(?:`|bin/|^)bulklane ([a-z]+)", README, re.MULTILINE)) | set(
        re.findall(r"also: ([a-z, ]+)", README)[0].split(", ")
    )
    assert {"reindex", "decide", "verify"} <= named
    assert {name for name in named if name not in help_text} == set()


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
