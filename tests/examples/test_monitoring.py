"""The dashboard asks only for metrics that a server has, with labels that they have."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.serving import NAME, serving

FOLDER = Path(__file__).parent.parent.parent / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana" / "jengine.json").read_text())
NAMED = r"[a-z_]+:?[a-z_0-9]*"
SELECTOR = re.compile(rf"({NAMED})(?:\{{[^}}]*\}})?\[|(jengine:[a-z_0-9]+)\{{")
BY = re.compile(r"by \(([^)]*)\)")


@cache
def samples() -> dict[str, set[str]]:
    """Sample -> its labels, of a server that has answered a request."""
    with serving() as client:
        ask = {"model": NAME, "prompt": "abc", "max_tokens": 2}
        assert client.post("/v1/completions", json=ask).status_code == 200
        text = client.get("/metrics").text
    return {
        one.name: set(one.labels)
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def expressions() -> list[tuple[str, str]]:
    return [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


def used(expression: str) -> list[str]:
    """The samples that an expression selects."""
    return [first or second for first, second in SELECTOR.findall(expression)]


@pytest.mark.parametrize("title, expression", expressions())
def test_every_query_finds_samples(title: str, expression: str) -> None:
    names = used(expression)
    assert names, f"{title}: {expression} selects nothing"
    for name in names:
        assert name in samples(), f"{title}: there is no {name}"
        for labels in BY.findall(expression):
            wanted = {label.strip() for label in labels.split(",")}
            assert wanted <= samples()[name], f"{title}: {name} has no label of {wanted}"
        if "$model_name" in expression:
            assert "model_name" in samples()[name]


def test_legends_name_labels_that_the_query_keeps() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = {
                label.strip()
                for labels in BY.findall(target["expr"])
                for label in labels.split(",")
            }
            if not kept:  # nothing is summed up: every label is there
                kept = set.union(*(samples()[name] for name in used(target["expr"])))
            assert shown <= kept, (panel["title"], target)


def test_the_dashboard_shows_what_vllms_does() -> None:
    shown = " ".join(expression for _, expression in expressions())
    for name in (
        "e2e_request_latency_seconds", "prompt_tokens_total", "generation_tokens_total",
        "inter_token_latency_seconds", "time_to_first_token_seconds", "num_requests_running",
        "num_requests_waiting", "kv_cache_usage_perc", "request_prompt_tokens",
        "request_generation_tokens", "request_success_total", "_queue_time_seconds",
        "_prefill_time_seconds", "_decode_time_seconds", "request_max_num_generation_tokens",
    ):  # fmt: skip
        assert f"jengine:{name}" in shown or f"request{name}" in shown, name


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_the_compose_file_mounts_files_that_are_there() -> None:
    compose = (FOLDER / "docker-compose.yml").read_text()
    mounted = re.findall(r"- (\./\S+?):/", compose)
    assert len(mounted) == 4
    for path in mounted:
        assert (FOLDER / path).is_file(), path
