"""docker-compose.yml and the Dockerfile against the code that they run. No container engine: the files are read."""

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic_settings import BaseSettings

from bulklane.contracts.search_attribute import SEARCH_ATTRIBUTES
from bulklane.contracts.timing import check_timing
from bulklane.operations.operation import Registry
from bulklane.operations.registry import load_registry
from bulklane.stack import jars
from bulklane.stack.temporal import DYNAMIC_CONFIG
from bulklane.starter.settings import StarterSettings
from bulklane.workers.build import SPARE_CONNECTIONS
from bulklane.workers.roles import ROLES, role_of
from bulklane.workers.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+):-([^}]*)\}")
# PostgreSQL's own versions have two numbers
PINNED = re.compile(r"(postgres:\d+\.\d+|[a-z0-9./-]+:\d+\.\d+\.\d+)(-[a-z0-9]+)*")
OURS = "bulklane:"
RESERVED_CONNECTIONS = 3  # superuser_reserved_connections
SECONDS = {"s": 1, "m": 60, "h": 3600}

Service = Mapping[str, Any]


def _resolved(value: Any) -> Any:
    """The file as Compose reads it in an empty environment: every variable has its default."""
    if isinstance(value, dict):
        return {key: _resolved(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_resolved(one) for one in value]
    return VARIABLE.sub(lambda found: found[2], value) if isinstance(value, str) else value


SERVICES: Mapping[str, Service] = _resolved(yaml.safe_load(COMPOSE))["services"]
WORKERS = {name: one for name, one in SERVICES.items() if one["image"].startswith(OURS) and "entrypoint" not in one}
LONG_RUNNING = {name: one for name, one in SERVICES.items() if one["restart"] == "unless-stopped"}


def environment_of(service: Service) -> dict[str, str]:
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def seconds(duration: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", duration)
    assert found, f"{duration!r} is no duration"
    return float(found[1]) / 1000 if found[2] == "ms" else float(found[1]) * SECONDS[found[2]]


def registry() -> Registry:
    (modules,) = {environment_of(one)["BULKLANE_OPERATIONS"] for one in WORKERS.values()}
    return load_registry(modules.split(","))


def worker_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    for variable, value in environment_of(WORKERS[name]).items():
        monkeypatch.setenv(variable, value)
    return WorkerSettings()


def replicas(service: Service) -> int:
    return int(service.get("deploy", {}).get("replicas", 1))


def postgres_settings(name: str) -> dict[str, str]:
    command = SERVICES[name]["command"]
    return dict(word.split("=", 1) for flag, word in zip(command[1::2], command[2::2], strict=True) if flag == "-c")


def known_variables(settings: type[BaseSettings], channels: list[str]) -> set[str]:
    """The environment names of a settings class; a mapping of models has one name per channel and field."""
    prefix, names = settings.model_config.get("env_prefix", ""), set()
    for field, info in settings.model_fields.items():
        models = [one for one in get_args(info.annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
        if models:
            nested = [f"{channel}__{inner}" for channel in channels for inner in models[0].model_fields]
            names |= {f"{prefix}{field}__{one}".upper() for one in nested}
        else:
            names.add(f"{prefix}{field}".upper())
    return names


@pytest.fixture(autouse=True)
def _nothing_of_ours_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in known_variables(WorkerSettings, list(registry().channels)) | known_variables(StarterSettings, []):
        monkeypatch.delenv(name, raising=False)


def test_every_role_has_a_service_and_every_channel_of_the_example() -> None:
    served = sorted(word for one in WORKERS.values() for word in one["command"])
    assert served == sorted([*ROLES, *(f"effects:{channel}" for channel in registry().channels)])


def test_every_variable_of_ours_is_a_setting() -> None:
    known = known_variables(WorkerSettings, list(registry().channels)) | known_variables(StarterSettings, [])
    used = {name for one in SERVICES.values() for name in environment_of(one) if name.startswith("BULKLANE_")}
    assert used <= known, f"no setting has this name: {sorted(used - known)}"


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_would_start_with_its_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = worker_settings(name, monkeypatch)
    check_timing(settings.timing())
    assert settings.database_url.startswith("postgresql+psycopg://")
    assert environment_of(WORKERS[name])["TEMPORAL_ADDRESS"] == "temporal:7233"
    assert (settings.slots + SPARE_CONNECTIONS) * settings.processes <= settings.connection_budget
    role = role_of(WORKERS[name]["command"][0])
    indexes = {effect.channel for one in registry().operations.values() if (effect := one.searched)}
    assert set(settings.channels) == ({role.channel} if role.channel else indexes)


def test_install_has_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in environment_of(SERVICES["install"]).items():
        monkeypatch.setenv(variable, value)
    settings = StarterSettings()
    assert settings.modules() == ["examples.flights.operation"]
    assert {environment_of(one)["BULKLANE_DATABASE_URL"] for one in WORKERS.values()} == {settings.database_url}


def test_the_example_module_prepares_its_data() -> None:
    (script,) = SERVICES["example-data"]["command"]
    compile(script, "example-data", "exec")
    found = re.search(r"from (\S+) import (\w+)", script)
    assert found
    assert getattr(importlib.import_module(found[1]), found[2]).prepare is not None


def test_all_processes_fit_the_budget_and_the_budget_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    all_settings = {name: worker_settings(name, monkeypatch) for name in WORKERS}
    processes = sum(replicas(one) for one in WORKERS.values())
    assert all(settings.processes >= processes for settings in all_settings.values())
    (budget,) = {settings.connection_budget for settings in all_settings.values()}
    assert budget + RESERVED_CONNECTIONS < int(postgres_settings("postgres")["max_connections"])


def test_the_server_gives_chunks_the_time_that_they_count_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server = seconds(postgres_settings("postgres")["deadlock_timeout"])
    for name in WORKERS:
        assert worker_settings(name, monkeypatch).deadlock_timeout <= server


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    assert PINNED.fullmatch(SERVICES[name]["image"]), f"{SERVICES[name]['image']} names no exact version"


def test_the_stages_of_the_dockerfile_are_pinned() -> None:
    stages: set[str] = set()
    for image, stage in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE):
        assert image in stages or PINNED.fullmatch(image), f"{image} names no exact version"
        stages.add(stage)
    assert len(stages) == len(re.findall(r"^FROM ", DOCKERFILE, re.MULTILINE))
    assert SERVICES["small"]["build"]["target"] in stages


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_what_runs_long_has_a_health_check_and_a_grace(name: str) -> None:
    assert LONG_RUNNING[name]["healthcheck"]["test"]
    assert seconds(LONG_RUNNING[name]["stop_grace_period"]) > 0


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_drains_within_its_grace_and_tells_its_health(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = worker_settings(name, monkeypatch)
    assert name in LONG_RUNNING
    assert seconds(WORKERS[name]["stop_grace_period"]) > settings.drain_seconds
    assert f"http://127.0.0.1:{settings.health_port}/healthz" in WORKERS[name]["healthcheck"]["test"][-1]


def test_a_service_waits_for_what_it_needs() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            wanted = "service_healthy" if needed in LONG_RUNNING else "service_completed_successfully"
            assert how["condition"] == wanted, f"{name} waits for {needed} by {how['condition']}"
    for service in WORKERS.values():
        assert {"install", "temporal-namespace"} <= set(service["depends_on"])


def test_ports_are_on_the_loopback_only() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_mounted_files_are_there() -> None:
    mounted = [volume.split(":")[0] for one in SERVICES.values() for volume in one.get("volumes", [])]
    files = [ROOT / path for path in mounted if path.startswith("./")]
    assert files
    assert all(path.is_file() for path in files)


def test_the_example_environment_lists_what_can_be_set() -> None:
    lines = (ROOT / "deploy/env.example").read_text().splitlines()
    listed = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert listed == dict(VARIABLE.findall(COMPOSE))


def test_no_variable_is_without_a_default() -> None:
    assert not re.search(r"(?<!\$)\$(\w|\{\w+\})", COMPOSE)


def test_opensearch_is_the_embedded_one_and_secured() -> None:
    service = SERVICES["opensearch"]
    assert service["image"].split(":")[1] == jars.VERSION
    assert environment_of(service)["discovery.type"] == "single-node"
    assert not {"DISABLE_SECURITY_PLUGIN", "plugins.security.disabled"} & set(environment_of(service))


def test_temporal_has_the_settings_of_the_embedded_one() -> None:
    known = yaml.safe_load((ROOT / "deploy/temporal/dynamic-config.yaml").read_text())
    given = {name: value for name, [one] in known.items() for value in one.values()}
    assert given == dict(DYNAMIC_CONFIG)
    assert SERVICES["temporal"]["image"].split(":")[1] == SERVICES["temporal-schema"]["image"].split(":")[1]


def test_the_namespace_script_registers_our_search_attributes() -> None:
    script = (ROOT / "deploy/temporal/namespace.sh").read_text()
    found = re.search(r'^attributes="(.*)"$', script, re.MULTILINE)
    assert found
    assert set(found[1].split()) == set(SEARCH_ATTRIBUTES)


def test_the_image_installs_by_hashes_only() -> None:
    for command in re.findall(r"pip (?:install|wheel) ([^&\n]*)", DOCKERFILE):
        assert "--require-hashes" in command or "--no-deps" in command, command
    locked = re.findall(r"-r (\S+)", DOCKERFILE)
    assert sorted(locked) == ["requirements/build.txt", "requirements/run.txt"]
    for path in locked:
        assert "--hash=sha256:" in (ROOT / path).read_text()


def test_the_image_gets_every_room() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {word for line in copied for word in line.split()}
    rooms = {link.resolve().name for link in (ROOT / "bulklane").iterdir() if link.is_symlink()}
    assert rooms | {"bulklane", "examples"} <= sources
    allowed = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert {source.split("/")[0] for source in sources} <= set(allowed)
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_runs_the_workers_as_nobody_in_particular() -> None:
    last = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    assert re.search(r"^USER \d+:\d+$", last, re.MULTILINE)
    found = re.search(r"^ENTRYPOINT (.+)$", last, re.MULTILINE)
    assert found
    assert json.loads(found[1]) == ["python", "-m", "bulklane.workers"]
