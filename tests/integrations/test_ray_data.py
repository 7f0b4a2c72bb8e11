"""Ray Data over jengine with a real Ray, which is an extra: rows in, rows out, each once.

In programs of their own, which start a cluster and end it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jengine import LLM

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow


def said(scenario: str, folder: Path) -> dict[str, Any]:
    """What a driver says in a scenario."""
    pytest.importorskip("ray.data.llm")
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.ray_data_program", scenario, str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",  # of as many as there are CPUs
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_killed_actor_loses_no_row_and_doubles_none(tmp_path: Path) -> None:
    found = said("killed", tmp_path)
    assert found["actors"] == 4 and found["replaced"]
    rows = sorted(found["rows"], key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(found["count"]))
    assert all(row["num_generated_tokens"] == 8 for row in rows)
    answers: dict[str, str] = {}
    for row in rows:
        assert answers.setdefault(row["prompt"], row["generated_text"]) == row["generated_text"]


def test_answers_are_those_of_an_engine_and_a_bad_row_is_its_own_error(tmp_path: Path) -> None:
    found = said("generated", tmp_path)
    assert found["stages"] == [
        "ChatTemplateStage", "TokenizeStage", "EngineStage", "DetokenizeStage",
    ]  # fmt: skip
    rows = {row["id"]: row for row in found["rows"] if row["id"] is not None}
    failed = rows.pop(3)
    assert "temperature" in failed["__inference_error__"] and failed["generated_text"] == ""
    assert sorted(rows) == [0, 1, 2, 4, 5, 6, 7]
    with LLM("demo", **found["engine"]) as llm:
        for number, row in rows.items():
            chat = [{"role": "user", "content": f"What is {number} + 3?"}]
            params = llm.get_default_sampling_params().clone(**found["sampling"], logprobs=1)
            (output,) = llm.chat(chat, params)
            assert row["generated_text"] == output.outputs[0].text
            assert row["prompt"] == output.prompt and row["__inference_error__"] == ""
            scores = output.outputs[0].logprobs
            assert scores is not None
            assert row["first"] == pytest.approx(max(one.logprob for one in scores[0].values()))
    assert "jengine_generation_tokens_total" in found["metrics"]


def test_embeddings(tmp_path: Path) -> None:
    rows = said("pooled", tmp_path)["rows"]
    assert sorted(row["id"] for row in rows) == list(range(6))
    assert {row["size"] for row in rows} == {rows[0]["size"]} and rows[0]["size"] > 16
