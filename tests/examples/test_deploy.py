"""Files for deployment: their flags, probes and time limits are those that the server has."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from jengine.cli import serve
from jengine.cli.main import command_parser
from jengine.cli.serving.flags import ENVIRONMENT, server_settings
from jengine.cli.terminal import Terminal
from jengine.server.app import ENDPOINTS
from jengine.server.http.auth import Access
from jengine.server.settings import ServerSettings

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
PUBLIC = {endpoint.path for endpoint in ENDPOINTS if endpoint.access is Access.PUBLIC}


def settings_of(words: list[str]) -> tuple[argparse.Namespace, ServerSettings]:
    """What `jengine serve` makes of these words; it ends the test if it takes one for unknown."""
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    given = command_parser("serve", serve, terminal).parse(words)
    return given, server_settings(given, {})


def documents() -> dict[str, Any]:
    found = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in found}


def test_kubernetes_asks_for_what_the_server_has() -> None:
    pod = documents()["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["jengine"] and container["args"][0] == "serve"
    given, settings = settings_of(container["args"][1:])
    assert given.model == "/models/model" and settings.host == "0.0.0.0"
    assert settings.port == container["ports"][0]["containerPort"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in PUBLIC, "probes have no key"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert pod["spec"]["terminationGracePeriodSeconds"] > settings.shutdown_timeout
    annotations = pod["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in PUBLIC
    assert int(annotations["prometheus.io/port"]) == settings.port


def test_the_service_reaches_the_pods() -> None:
    found = documents()
    deployment, service = found["Deployment"]["spec"], found["Service"]["spec"]
    assert service["selector"] == deployment["selector"]["matchLabels"]
    pod = deployment["template"]
    assert pod["metadata"]["labels"] == service["selector"]
    (port,) = service["ports"]
    assert port["targetPort"] == pod["spec"]["containers"][0]["ports"][0]["name"]


def test_systemd_starts_the_server_and_lets_it_drain() -> None:
    lines = (DEPLOY / "jengine.service").read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    program, command, *words = shlex.split(unit["ExecStart"])
    assert program.endswith("/jengine") and command == "serve"
    _, settings = settings_of(words)
    assert float(unit["TimeoutStopSec"]) > settings.shutdown_timeout
    assert not settings.api_key, "a key on the command line is seen by everybody"


def test_keys_come_from_the_variables_that_the_files_name() -> None:
    text = "".join(path.read_text() for path in DEPLOY.iterdir())
    known = {name for names in ENVIRONMENT.values() for name in names}
    assert "JENGINE_API_KEY" in text and {"JENGINE_API_KEY", "JENGINE_ADMIN_KEY"} <= known


def test_the_image_serves_what_its_health_check_asks() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    lists = dict(re.findall(r"^\s*(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE))
    command = json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[0])
    assert json.loads(lists["ENTRYPOINT"]) == ["jengine"] and command[0] == "serve"
    _, settings = settings_of(command[1:])
    address, path = re.findall(r"urlopen\(\'http://127.0.0.1:(\d+)([^\']*)", text)[0]
    assert int(address) == settings.port == int(re.findall(r"EXPOSE (\d+)", text)[0])
    assert settings.host == "0.0.0.0" and path in PUBLIC
    (cache,) = re.findall(r"VOLUME (.*)", text)
    (container,) = documents()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert cache in {mount["mountPath"] for mount in container["volumeMounts"]}
