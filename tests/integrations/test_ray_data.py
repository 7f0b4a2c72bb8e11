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

import numpy as np
import pytest
import torch
import transformers as hf
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from jengine import LLM, LoRARequest, SamplingParams
from jengine.demo import model_path
from tests.api.test_encoders import BASE, DOCUMENTS, QUERY, saved, words_tokenizer
from tests.api.test_pooling import PROMPTS, SIZES
from tests.lora.adapters import write_adapter

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow


def said(scenario: str, folder: Path) -> dict[str, Any]:
    """What a driver says in a scenario."""
    return driver_said("ray_data_program", scenario, str(folder))


def driver_said(program: str, *arguments: str) -> dict[str, Any]:
    """What a program with a cluster of its own says at its end."""
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.integrations.{program}", *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",  # of as many as there are CPUs
            "RAY_worker_niceness": "0",  # of 15, with which all waits where a machine is busy
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
    write_adapter(tmp_path / "shout", model_path(), seed=1)
    found = said("generated", tmp_path)
    assert found["stages"] == [
        "ChatTemplateStage", "TokenizeStage", "EngineStage", "DetokenizeStage",
    ]  # fmt: skip
    rows = {row["id"]: row for row in found["rows"] if row["id"] is not None}
    failed = rows.pop(3)
    assert "temperature" in failed["__inference_error__"] and failed["generated_text"] == ""
    assert sorted(rows) == [0, 1, 2, 4, 5, 6, 7]
    with LLM("demo", enable_lora=True, **found["engine"]) as llm:
        for number, row in rows.items():
            adapter = LoRARequest("shout", 1, str(tmp_path / "shout")) if number == 5 else None
            chat = [{"role": "user", "content": f"What is {number} + 3?"}]
            given = {**found["sampling"], **(found["two"] if number == 6 else {})}
            params = llm.get_default_sampling_params().clone(**given, logprobs=1)
            (output,) = llm.chat(chat, params, lora_request=adapter)
            texts = [one.text for one in output.outputs]
            assert (row["__inference_error__"], row["generated_text"]) == ("", texts[0])
            assert row["texts"] == (texts if number == 6 else None), "all of n answers"
            assert row["prompt"] == output.prompt
            (plain,) = llm.chat(chat, params)
            assert adapter is None or plain.outputs[0].text != texts[0]
            scores = output.outputs[0].logprobs
            assert scores is not None
            assert (row["first"] is None) == (number == 7)
            assert number == 7 or row["first"] == pytest.approx(
                max(one.logprob for one in scores[0].values())
            )
    assert "jengine_generation_tokens_total" in found["metrics"]


def test_the_engine_leaves_text_to_another_stage_unless_it_needs_it() -> None:
    engine = pytest.importorskip("jengine.integrations.ray_data_engine")
    needing: list[dict[str, Any]] = [
        {"n": 2}, {"stop": "a"}, {"logprobs": 1}, {"prompt_logprobs": 0},
    ]  # fmt: skip
    assert engine.needs_no_text(SamplingParams(max_tokens=3))
    assert not any(engine.needs_no_text(SamplingParams(**one)) for one in needing)


def test_embeddings(tmp_path: Path) -> None:
    rows = said("pooled", tmp_path)["rows"]
    assert sorted(row["id"] for row in rows) == list(range(6))
    assert {row["size"] for row in rows} == {rows[0]["size"]} and rows[0]["size"] > 16


def test_classes_and_scores(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES, id2label={0: "a", 1: "b", 2: "c"})
    decoder = Qwen3ForSequenceClassification(config).eval()
    decoder.save_pretrained(tmp_path / "decoder")
    bert = hf.BertConfig(**{**BASE, "initializer_range": 0.5}, num_labels=1)
    encoder = saved(hf.BertForSequenceClassification(bert), tmp_path / "encoder")
    tokenizer = words_tokenizer(tmp_path / "encoder")
    names = {"input_ids": "tokenized_prompt", "token_type_ids": "token_type_ids"}
    pairs = [tokenizer(QUERY, document) for document in DOCUMENTS]
    classes = [{"id": number, "tokenized_prompt": ids} for number, ids in enumerate(PROMPTS)]
    scores = [
        {"id": number, **{ours: pair[name] for name, ours in names.items()}}
        for number, pair in enumerate(pairs)
    ]
    (tmp_path / "rows.json").write_text(json.dumps({"classes": classes, "scores": scores}))
    found = said("scored", tmp_path)
    with torch.no_grad():
        own = [decoder(torch.tensor([ids])).logits[0].softmax(-1) for ids in PROMPTS]
        given = tokenizer([QUERY] * 4, DOCUMENTS, padding=True, return_tensors="pt")
        scored = encoder(**given).logits.sigmoid()
    for name, expected in (("classes", own), ("scores", scored)):
        rows = sorted(found[name])
        assert [row[0] for row in rows] == list(range(len(expected)))
        for row, one in zip(rows, expected, strict=True):
            np.testing.assert_allclose(row[1:], one, atol=1e-4)


def test_a_pool_grows_with_its_work(tmp_path: Path) -> None:
    found = said("grown", tmp_path)
    assert found["ids"] == list(range(400)) and 1 < found["most"] <= 3
