"""A model with an encoder of text over HTTP: a prompt is what the encoder reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from jengine.assembly.build import build_engine
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from tests.media.tiny_bart import POSITIONS, START, greedy, write_bart
from tests.server.serving import error_of, events, serving

PATH = "/v1/completions"
SOURCES = [[0, 41, 10, 2], [60, 61, 2]]


@pytest.mark.slow
def test_completions_answer_what_the_encoder_reads(tmp_path: Path) -> None:
    folder = write_bart(tmp_path)
    args = EngineArgs(
        model=str(folder), max_model_len=POSITIONS, skip_tokenizer_init=True, block_size=16
    )
    body = {"model": "m", "temperature": 0, "max_tokens": 6, "ignore_eos": True,
            "return_token_ids": True}  # fmt: skip
    expected = [greedy(folder, source, [START], 6) for source in SOURCES]
    assert expected[0] != expected[1]
    with serving(build_engine(args, progress_factory(False)), served_model_name=("m",)) as client:
        answer = client.post(PATH, json={**body, "prompt": SOURCES})
        assert answer.status_code == 200, answer.text
        assert [one["token_ids"] for one in answer.json()["choices"]] == expected
        streamed = events(client.post(PATH, json={**body, "prompt": SOURCES[0], "stream": True}))
        choices = [choice for event in streamed for choice in event["choices"]]
        ids = [token for choice in choices for token in choice["token_ids"] or []]
        assert ids == expected[0]
        long = client.post(PATH, json={**body, "prompt": [5] * (POSITIONS + 1)})
        assert str(POSITIONS) in error_of(long, 400)["message"]
