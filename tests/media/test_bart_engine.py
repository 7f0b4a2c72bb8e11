"""BART end to end, equal to transformers in float32."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError, UnsupportedFeature
from jengine.models.parameter import named_parameters
from jengine.weights.folder import open_checkpoint
from jengine.weights.safetensors_file import write_file
from jengine.weights.safetensors_io import load_model
from tests.api.engines import answers, is_idle, rebuilt, tiny_engine
from tests.media.tiny_bart import POSITIONS, START, VOCAB, greedy, logits, peer, write_bart

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
SHORT, LONG, OTHER = [9], [0, *range(20, 20 + POSITIONS - 2), 2], [0, *range(60, 80), 2]
# The encoder's prompt and the decoder's.
PROMPTS: list[tuple[list[int], list[int]]] = [
    (SHORT, [START]),
    (LONG, [START, 0, 5, 6]),
    (OTHER, [START]),
    ([0, 41, 10, 2], [START, *range(30, 60)]),
    ([60, 61, 2], [START, 7]),
]


def asked(source: list[int], ids: list[int]) -> Any:
    if ids == [START]:
        return source
    return {"encoder_prompt": source, "decoder_prompt": {"prompt_token_ids": ids}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bart(tmp_path_factory.mktemp("bart"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[jengine.LLM]:
    # Room for the longest text alone, or for several short ones: the others wait.
    engine = tiny_engine(
        folder,
        compilation_config={"encoder_tokens": POSITIONS, "patch_sizes": [16, POSITIONS]},
        max_model_len=POSITIONS,
    )
    yield engine
    assert is_idle(engine)
    engine.shutdown()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[list[int]]]:
    """What transformers answers."""
    return [[greedy(folder, source, ids, 10)] for source, ids in PROMPTS]


def test_mixed_batches_answer_as_transformers_does(llm: jengine.LLM, expected: Any) -> None:
    assert len({str(each) for each in expected}) == len(PROMPTS), "both prompts matter"
    outputs = llm.generate([asked(*one) for one in PROMPTS], GREEDY)
    assert answers(outputs) == expected
    assert [one.prompt_token_ids for one in outputs] == [ids for _, ids in PROMPTS]


def test_logits_are_those_of_transformers(llm: jengine.LLM, folder: Path) -> None:
    source, ids = PROMPTS[1]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
    (output,) = llm.generate([asked(source, ids)], params)
    assert output.outputs[0].logprobs is not None
    found = output.outputs[0].logprobs[0]
    ours = np.array([found[token].logprob for token in range(VOCAB)])
    theirs = logits(folder, source, ids)[-1].astype(np.float64)
    theirs -= np.log(np.exp(theirs - theirs.max()).sum()) + theirs.max()
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_decoders_prompt_begins_with_the_start_token(llm: jengine.LLM, expected: Any) -> None:
    source, ids = PROMPTS[1]
    given = {"encoder_prompt": {"prompt_token_ids": source}, "decoder_prompt": ids[1:]}
    assert answers(llm.generate([given], GREEDY)) == expected[1:2]
    given = {"encoder_prompt": SHORT, "decoder_prompt": None}
    assert answers(llm.generate([given], GREEDY)) == expected[:1]


def test_an_equal_text_is_encoded_once_and_shares_prefixes(llm: jengine.LLM, expected: Any) -> None:
    source, ids = PROMPTS[3]
    outputs = [llm.generate([asked(source, ids)], GREEDY)[0] for _ in range(2)]
    assert answers(outputs) == [expected[3]] * 2
    assert outputs[1].num_cached_tokens
    (other,) = llm.generate([asked(OTHER, ids)], GREEDY)
    assert not other.num_cached_tokens, "another text shares no blocks"


def test_preempted_requests_answer_as_others_do(llm: jengine.LLM) -> None:
    long = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = [SHORT, [0, 11, 12, 2], [0, 13, 2]]
    expected = [answers(llm.generate([one], long))[0] for one in prompts]
    with rebuilt(llm, num_blocks=5, prefix_caching=False) as small:
        outputs = small.generate(prompts, long)
    assert answers(outputs) == expected
    assert sum(one.metrics.num_preemptions for one in outputs if one.metrics)


def test_prompts_that_do_not_fit_are_refused_and_others_go_on(
    llm: jengine.LLM, expected: Any
) -> None:
    with pytest.raises(RequestError, match=f"maximum context length is {POSITIONS}"):
        llm.generate([[5] * (POSITIONS + 1)], GREEDY)
    with pytest.raises(RequestError, match="empty"):
        llm.generate([[]], GREEDY)
    with pytest.raises(RequestError, match="prompt of an encoder-decoder model"):
        llm.generate([{"decoder_prompt": [5]}], GREEDY)
    with pytest.raises(RequestError, match="go from 0 to 96"):
        llm.generate([[VOCAB]], GREEDY)
    assert answers(llm.generate([SHORT], GREEDY)) == expected[:1]


def test_what_is_not_built_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="takes text for its encoder, with deterministic"):
        tiny_engine(folder, deterministic=True, max_model_len=POSITIONS)
    with pytest.raises(UnsupportedFeature, match="its encoder, with enable_prompt_embeds"):
        tiny_engine(folder, enable_prompt_embeds=True, max_model_len=POSITIONS)


def test_a_forced_token_follows_the_start_token(tmp_path: Path) -> None:
    """transformers' greedy generate makes it the first token, whatever the logits are."""
    folder = write_bart(tmp_path, forced=0)
    torch = pytest.importorskip("torch")
    made = (
        peer(folder)
        .generate(
            torch.tensor([SHORT]), max_new_tokens=8, min_new_tokens=8, num_beams=1, do_sample=False
        )[0]
        .tolist()
    )
    llm = tiny_engine(folder, max_model_len=POSITIONS)
    try:
        params = SamplingParams(temperature=0, max_tokens=7, min_tokens=7)
        (output,) = llm.generate([SHORT], params)
        assert output.prompt_token_ids == made[:2] == [START, 0]
        assert list(output.outputs[0].token_ids) == made[2:]
    finally:
        llm.shutdown()


def test_files_of_the_bare_model_have_no_bias_of_logits(folder: Path, tmp_path: Path) -> None:
    """Such files leave out the beginning of names as well, and may repeat the embedding."""
    given = load_model(folder)
    tensors = {
        name.removeprefix("model."): np.asarray(stored.read())
        for name, stored in open_checkpoint(folder).items()
        if name != "final_logits_bias"
    }
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"]
    declared = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    write_file(tmp_path / "model.safetensors", declared, tensors.values())
    shutil.copy(folder / "config.json", tmp_path)
    bare = dict(named_parameters(load_model(tmp_path)))
    for path, parameter in named_parameters(given):
        expected = np.zeros(VOCAB) if path == "logits_bias" else parameter[...]
        np.testing.assert_array_equal(bare[path][...], expected, err_msg=path)
