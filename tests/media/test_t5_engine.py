"""T5, its v1.1 and mT5 end to end, equal to transformers in float32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import CheckpointError, RequestError, UnsupportedFeature
from jengine.models.parameter import named_parameters
from jengine.weights.folder import open_checkpoint
from jengine.weights.safetensors_file import write_file
from jengine.weights.safetensors_io import load_model, save_pretrained
from tests.api.engines import answers, is_idle, rebuilt, tiny_engine
from tests.media.tiny_t5 import (
    CONFIG,
    KINDS,
    POSITIONS,
    START,
    VOCAB,
    Kind,
    greedy,
    logits,
    peer,
    write_t5,
)

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
MOST_DISTANCE = CONFIG["relative_attention_max_distance"]
LONG = [*range(20, 20 + POSITIONS - 1), 1]
# The encoder's prompt and the decoder's; of both, some are longer than the largest distance.
PROMPTS: list[tuple[list[int], list[int]]] = [
    ([9, 1], [START]),
    (LONG, [START, 5, 6]),
    ([*range(60, 80), 1], [START, *range(30, 75)]),
    ([41, 10, 1], [START, *range(30, 30 + MOST_DISTANCE)]),
    ([60, 61, 1], [START, 7]),
]


class Written(NamedTuple):
    folder: Path
    kind: Kind

    @property
    def peer(self) -> Any:
        return peer(self.folder, self.kind.name)


def asked(source: list[int], ids: list[int]) -> Any:
    return {"encoder_prompt": source, "decoder_prompt": {"prompt_token_ids": ids}}


@pytest.fixture(scope="module", params=KINDS)
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Written:
    kind = KINDS[request.param]
    return Written(write_t5(tmp_path_factory.mktemp("t5"), kind), kind)


@pytest.fixture(scope="module")
def llm(model: Written) -> Iterator[jengine.LLM]:
    engine = tiny_engine(
        model.folder,
        compilation_config={"encoder_tokens": POSITIONS + 8, "patch_sizes": [16, POSITIONS]},
        max_model_len=POSITIONS,
    )
    yield engine
    assert is_idle(engine)
    engine.shutdown()


@pytest.fixture(scope="module")
def expected(model: Written) -> list[list[list[int]]]:
    """What transformers answers."""
    return [[greedy(model.peer, source, ids, 10)] for source, ids in PROMPTS]


def test_mixed_batches_answer_as_transformers_does(llm: jengine.LLM, expected: Any) -> None:
    assert len({str(each) for each in expected}) == len(PROMPTS), "both prompts matter"
    assert max(len(ids) for _, ids in PROMPTS) > 2 * MOST_DISTANCE
    outputs = llm.generate([asked(*one) for one in PROMPTS], GREEDY)
    assert answers(outputs) == expected
    assert [one.prompt_token_ids for one in outputs] == [ids for _, ids in PROMPTS]
    plain = llm.generate([source for source, _ in PROMPTS[:1]], GREEDY)
    assert answers(plain) == expected[:1], "the decoder begins with the start token"


def test_logits_are_those_of_transformers(llm: jengine.LLM, model: Written) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
    outputs = llm.generate([asked(*one) for one in PROMPTS], params)
    for (source, ids), output in zip(PROMPTS, outputs, strict=True):
        assert output.outputs[0].logprobs is not None
        found = output.outputs[0].logprobs[0]
        ours = np.array([found[token].logprob for token in range(VOCAB)])
        theirs = logits(model.peer, source, ids)[-1].astype(np.float64)
        theirs -= np.log(np.exp(theirs - theirs.max()).sum()) + theirs.max()
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_cached_prefixes_and_preempted_requests_answer_alike(
    llm: jengine.LLM, expected: Any
) -> None:
    source, ids = PROMPTS[2]
    outputs = [llm.generate([asked(source, ids)], GREEDY)[0] for _ in range(2)]
    assert answers(outputs) == [expected[2]] * 2
    assert outputs[1].num_cached_tokens
    long = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    prompts = [[9, 1], [11, 12, 1], [13, 1]]
    alone = [answers(llm.generate([one], long))[0] for one in prompts]
    with rebuilt(llm, num_blocks=5, prefix_caching=False) as small:
        outputs = small.generate(prompts, long)
    assert answers(outputs) == alone
    assert sum(one.metrics.num_preemptions for one in outputs if one.metrics)


def test_prompts_that_do_not_fit_are_refused_and_others_go_on(
    llm: jengine.LLM, expected: Any
) -> None:
    with pytest.raises(RequestError, match=f"maximum context length is {POSITIONS}"):
        llm.generate([[5] * (POSITIONS + 1)], GREEDY)
    assert answers(llm.generate([asked(*PROMPTS[0])], GREEDY)) == expected[:1]


def test_what_is_saved_is_what_was_read(model: Written, tmp_path: Path) -> None:
    """By transformers as well."""
    given = load_model(model.folder)
    save_pretrained(given, tmp_path / "saved")
    again = dict(named_parameters(load_model(tmp_path / "saved")))
    for path, parameter in named_parameters(given):
        np.testing.assert_array_equal(again[path][...], parameter[...], err_msg=path)
    theirs, source = peer(tmp_path / "saved", model.kind.name), LONG
    ids = [START, 5]
    expected = logits(model.peer, source, ids)
    np.testing.assert_allclose(logits(theirs, source, ids), expected, atol=1e-5)


def test_published_files_repeat_the_embedding_and_hold_an_unused_bias(
    model: Written, tmp_path: Path
) -> None:
    given = load_model(model.folder)
    tensors = {name: np.asarray(one.read()) for name, one in open_checkpoint(model.folder).items()}
    copies = ["encoder.embed_tokens", "decoder.embed_tokens", *["lm_head"] * model.kind.tied]
    tensors |= {f"{name}.weight": tensors["shared.weight"] for name in copies}
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[unused] = np.ones((8, 4), np.float32)
    declared = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    write_file(tmp_path / "model.safetensors", declared, tensors.values())
    shutil.copy(model.folder / "config.json", tmp_path)
    found = dict(named_parameters(load_model(tmp_path)))
    for path, parameter in named_parameters(given):
        np.testing.assert_array_equal(found[path][...], parameter[...], err_msg=path)


def test_what_is_not_built_is_refused_by_name(model: Written, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="takes text for its encoder, with deterministic"):
        tiny_engine(model.folder, deterministic=True, max_model_len=POSITIONS)
    config = json.loads((model.folder / "config.json").read_text())
    wrong = {
        "relative_attention_num_buckets": (30, "a multiple of 4"),
        "relative_attention_max_distance": (4, "an integer from 5"),
        "feed_forward_proj": ("gated-tanh", "one of gated-gelu"),
    }
    for key, (value, message) in wrong.items():
        (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(CheckpointError, match=f"{key}.*{message}"):
            load_model(tmp_path)
