"""docs/settings.md has every setting of the settings classes, with its default, and no other."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bulklane.operations.channel import ChannelSettings
from bulklane.starter.settings import StackSettings, StarterSettings
from bulklane.workers.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/settings.md").read_text()
OURS, OF_CHANNEL = "BULKLANE_", "BULKLANE_CHANNELS__<NAME>__"
SECTIONS: list[tuple[str, type[BaseModel], str]] = [
    ("Workers", WorkerSettings, OURS),
    ("Channels", ChannelSettings, OF_CHANNEL),
    ("Clients", StarterSettings, OURS),
    ("The stack on one machine", StackSettings, OURS),
]


def rows(title: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def variable(name: str, info: FieldInfo, prefix: str) -> str:
    return str(info.validation_alias) if info.validation_alias else prefix + name.upper()


def shown(info: FieldInfo) -> str | None:
    """A default as the page writes it; None where words say it."""
    if info.is_required():
        return "needed"
    default: Any = info.default
    if info.default_factory or default == {}:
        return None
    if default is None or default == "":
        return "none" if default is None else "empty"
    text = f"{default:g}" if isinstance(default, float) else str(default)
    return f"`{text.replace(str(Path.home()), '~')}`"


@pytest.mark.parametrize(("title", "settings", "prefix"), SECTIONS, ids=[title for title, *_ in SECTIONS])
def test_the_page_has_every_setting_in_its_order(title: str, settings: type[BaseModel], prefix: str) -> None:
    listed = [re.sub("`", "", name) for name, *_ in rows(title)]
    assert listed == [variable(name, info, prefix) for name, info in settings.model_fields.items()]


@pytest.mark.parametrize(("title", "settings", "prefix"), SECTIONS, ids=[title for title, *_ in SECTIONS])
def test_the_page_has_the_defaults(title: str, settings: type[BaseModel], prefix: str) -> None:
    told = {name.strip("`"): default for name, default, _ in rows(title)}
    wanted = {variable(name, info, prefix): shown(info) for name, info in settings.model_fields.items()}
    assert {name: told[name] for name, default in wanted.items() if default is not None} == {
        name: default for name, default in wanted.items() if default is not None
    }
