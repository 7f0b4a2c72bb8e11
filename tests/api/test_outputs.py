"""What comes back: kinds of output, text and stops, log-probabilities, sampling options, chat."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

import jengine
from jengine import RequestOutputKind, SamplingParams
from jengine.api.generate import _kept
from jengine.errors import EngineDead, RequestError, UnsupportedFeature
from jengine.text.transcript import Transcript
from jengine.weights.safetensors_io import load_model
from tests.api.engines import MAX_MODEL_LEN, VOCAB, answers, random_prompts, tiny_engine
from tests.api.test_same_tokens import mixed_params
from tests.models.plain_logits import plain_logits

PROMPTS = random_prompts(9, 40, 17, seed=2)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
TEXTS = ["Hello there", "once upon", "a"]
# Special tokens have no text; without them text and tokens are equally long.
LETTERS = {"logit_bias": {1: -100.0, 2: -100.0}}


def kind(params: SamplingParams, name: str) -> SamplingParams:
    return params.clone(output_kind=RequestOutputKind[name])


def only(llm: jengine.LLM, prompt: Any, **options: Any) -> jengine.CompletionOutput:
    """The one answer to a prompt, greedy unless said otherwise."""
    params = SamplingParams(**{"temperature": 0, "ignore_eos": True, **options})
    return llm.generate(prompt, params)[0].outputs[0]


# Kinds of output


@pytest.mark.parametrize("n", [1, 3])
def test_all_kinds_of_output_agree(text_llm: jengine.LLM, n: int) -> None:
    params = SamplingParams(
        n=n, seed=3, max_tokens=20, ignore_eos=True, logprobs=1, stop=["zz"], stop_token_ids=[40]
    )
    final = text_llm.generate(TEXTS, params)
    grown: dict[str, jengine.RequestOutput] = {}
    for output in text_llm.stream(TEXTS, kind(params, "CUMULATIVE")):
        grown[output.request_id] = output
    parts: dict[str, list[Any]] = {}
    for output in text_llm.stream(TEXTS, kind(params, "DELTA")):
        so_far = parts.setdefault(output.request_id, [["", [], [], None] for _ in range(n)])
        for answer in output.outputs:
            piece = so_far[answer.index]
            piece[0] += answer.text
            piece[1] += answer.token_ids
            piece[2] += answer.logprobs
            piece[3] = answer.finish_reason or piece[3]
    last = list(text_llm.stream(TEXTS, kind(params, "FINAL_ONLY")))
    assert len(last) == len(TEXTS)
    in_order = sorted(last, key=lambda output: int(output.request_id))
    for whole, streamed, joined, one in zip(
        final, grown.values(), parts.values(), in_order, strict=True
    ):
        assert whole.outputs == streamed.outputs == one.outputs
        for answer, piece in zip(whole.outputs, joined, strict=True):
            assert [answer.text, answer.token_ids, answer.logprobs, answer.finish_reason] == piece


def test_cumulative_outputs_grow_and_hold_text_back(text_llm: jengine.LLM) -> None:
    params = GREEDY.clone(
        output_kind=RequestOutputKind.CUMULATIVE, stop=["never to be found"], **LETTERS
    )
    texts = [output.outputs[0].text for output in text_llm.stream(TEXTS[0], params)]
    assert len(texts) == 12
    assert all(later.startswith(sooner) for sooner, later in pairwise(texts))
    assert len(texts[-1]) == 12 and len(texts[-2]) == 0


@pytest.mark.parametrize("interval", [1, 4, 5, 100])
@pytest.mark.parametrize("name", ["CUMULATIVE", "DELTA"])
def test_stream_interval(llm: jengine.LLM, interval: int, name: str) -> None:
    params = kind(GREEDY, name).clone(stream_interval=interval)
    outputs = list(llm.stream(PROMPTS[0], params))
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    shown = np.cumsum(lengths).tolist() if name == "DELTA" else lengths
    assert shown == sorted({*range(1, 12, interval), 12}), "first and last are immediate"
    assert outputs[-1].finished


def test_many_answers_to_one_prompt_take_linear_work(
    llm: jengine.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    finished = Transcript.finished.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Transcript, "finished", property(lambda self: asked.append(1) or finished(self))
    )
    params = SamplingParams(n=400, max_tokens=2, ignore_eos=True, seed=1)
    (output,) = llm.generate([PROMPTS[0]], params)
    assert [len(answer.token_ids) for answer in output.outputs] == [2] * 400
    assert len(asked) < 400 * 2 * 12, "each token asks about its own answer only"


# Stopping


def test_a_stop_string_ends_and_cuts_the_text(text_llm: jengine.LLM) -> None:
    free = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS)
    assert len(free.text) == len(free.token_ids) == 30
    stop = free.text[7:10]
    at = free.text.index(stop)
    cut = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS, stop=["not there", stop])
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.text == free.text[:at]
    assert cut.token_ids == free.token_ids[: at + 3]
    kept = only(
        text_llm, TEXTS[0], max_tokens=30, **LETTERS, stop=stop, include_stop_str_in_output=True
    )
    assert kept.text == free.text[: at + 3]
    later = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS, stop=stop, min_tokens=at + 4)
    assert len(later.token_ids) > len(cut.token_ids)


def test_a_stop_string_cuts_log_probabilities_too(text_llm: jengine.LLM) -> None:
    free = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS)
    cut = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS, stop=free.text[7:10], logprobs=0)
    assert cut.logprobs is not None and len(cut.logprobs) == len(cut.token_ids)
    assert cut.cumulative_logprob == pytest.approx(sum(cut.logprobs_array), abs=1e-4)


def first_time_of(tokens: list[int], at: int) -> int:
    """The first index from `at` on whose token has not come before."""
    return next(i for i in range(at, len(tokens)) if tokens[i] not in tokens[:i])


def test_stop_token_ids(text_llm: jengine.LLM) -> None:
    free = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS)
    at = first_time_of(free.token_ids, 4)
    token = free.token_ids[at]
    stopped = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS, stop_token_ids=[token])
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", token)
    assert stopped.token_ids == free.token_ids[: at + 1], "the stopping token stays"
    assert stopped.text == free.text[:at], "but is not in the text"
    shown = only(
        text_llm,
        TEXTS[0],
        max_tokens=30,
        stop_token_ids=[token],
        include_stop_str_in_output=True,
        **LETTERS,
    )
    assert shown.text == free.text[: at + 1]


def test_min_tokens_forbids_stop_tokens_until_then(text_llm: jengine.LLM) -> None:
    free = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS)
    token = free.token_ids[0]
    early = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS, stop_token_ids=[token])
    assert len(early.token_ids) == 1
    late = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS, stop_token_ids=[token], min_tokens=6)
    assert token not in late.token_ids[:6]
    assert len(late.token_ids) >= 6


def test_end_of_sequence(llm: jengine.LLM) -> None:
    wish = {"logit_bias": {2: 100.0}}
    stopped = only(llm, PROMPTS[0], ignore_eos=False, **wish)
    assert (stopped.token_ids, stopped.finish_reason, stopped.stop_reason) == ([2], "stop", None)
    ignored = only(llm, PROMPTS[0], ignore_eos=True, max_tokens=5, **wish)
    assert (ignored.token_ids, ignored.finish_reason) == ([2] * 5, "length")
    held = only(llm, PROMPTS[0], ignore_eos=False, min_tokens=3, **wish)
    assert held.token_ids.index(2) == 3


def test_another_end_token_of_the_model_is_the_stop_reason(
    text_llm: jengine.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = only(text_llm, TEXTS[0], max_tokens=30, **LETTERS)
    at = first_time_of(free.token_ids, 4)
    token = free.token_ids[at]
    entry = text_llm.engine.session.input_processor
    assert entry.limits.eos_token_ids == (2,)
    monkeypatch.setattr(entry, "limits", replace(entry.limits, stop_token_ids=(token,)))
    options = {**LETTERS, "ignore_eos": False, "max_tokens": 30}
    stopped = only(text_llm, TEXTS[0], **options)
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", token)
    assert (stopped.text, stopped.token_ids) == (free.text[:at], free.token_ids[: at + 1])
    held = only(text_llm, TEXTS[0], **options, min_tokens=at + 3)
    assert token not in held.token_ids[: at + 3]
    ignored = only(text_llm, TEXTS[0], **{**options, "ignore_eos": True})
    assert ignored.token_ids == free.token_ids, "ignore_eos ignores all of the model's"
    own = only(text_llm, TEXTS[0], **{**options, "logit_bias": {2: 100.0}})
    assert (own.token_ids, own.stop_reason) == ([2], None)


def test_max_tokens(llm: jengine.LLM) -> None:
    assert len(only(llm, PROMPTS[0]).token_ids) == 16
    assert len(only(llm, PROMPTS[0], max_tokens=1).token_ids) == 1
    rest = only(llm, [3] * (MAX_MODEL_LEN - 20), max_tokens=None)
    assert (len(rest.token_ids), rest.finish_reason) == (20, "length")
    capped = only(llm, [3] * (MAX_MODEL_LEN - 20), max_tokens=500)
    assert capped.token_ids == rest.token_ids


# Log-probabilities


def test_how_many_log_probabilities(llm: jengine.LLM) -> None:
    for count in (0, 1, 5, VOCAB, -1):
        answer = only(llm, PROMPTS[0], logprobs=count, temperature=1.5, seed=2)
        assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)
        for token, table in zip(answer.token_ids, answer.logprobs, strict=True):
            assert next(iter(table)) == token
            k = VOCAB if count < 0 else count
            assert len(table) in {min(k + 1, VOCAB), max(k, 1)}
            values = sorted((entry.logprob for entry in table.values()), reverse=True)
            assert all(value <= 0 for value in values)
            best = [entry for entry in table.values() if entry.rank <= k]
            assert [entry.logprob for entry in sorted(best, key=lambda e: e.rank)] == values[
                : len(best)
            ]
            if k == VOCAB:
                assert sum(np.exp(values)) == pytest.approx(1.0, abs=1e-4)
                above = sum(entry.logprob > table[token].logprob for entry in table.values())
                assert table[token].rank == above + 1
        assert answer.cumulative_logprob == pytest.approx(
            sum(t[i].logprob for i, t in zip(answer.token_ids, answer.logprobs, strict=True)),
            abs=1e-4,
        )
    nothing = only(llm, PROMPTS[0])
    assert nothing.logprobs is None and nothing.cumulative_logprob is None
    assert nothing.logprobs_array is None
    assert nothing.tokens.dtype == np.int32 and nothing.tokens.tolist() == nothing.token_ids


def test_prompt_log_probabilities(llm: jengine.LLM) -> None:
    for count in (0, 3, -1):
        params = GREEDY.clone(prompt_logprobs=count, max_tokens=1)
        outputs = llm.generate([*PROMPTS, [7]], params)
        for prompt, output in zip([*PROMPTS, [7]], outputs, strict=True):
            tables = output.prompt_logprobs
            assert tables is not None and len(tables) == len(prompt)
            assert tables[0] is None
            for token, table in zip(prompt[1:], tables[1:], strict=True):
                assert table is not None and next(iter(table)) == token
                assert len(table) >= max(count, 1)
    assert llm.generate(PROMPTS[0], GREEDY)[0].prompt_logprobs is None


def test_tokens_of_log_probabilities_have_text(text_llm: jengine.LLM) -> None:
    params = GREEDY.clone(logprobs=2, prompt_logprobs=0, max_tokens=6, **LETTERS)
    output = text_llm.generate(TEXTS[0], params)[0]
    answer = output.outputs[0]
    assert answer.logprobs is not None and output.prompt_logprobs is not None
    pairs = zip(answer.token_ids, answer.logprobs, strict=True)
    shown = [table[token].decoded_token for token, table in pairs]
    assert "".join(map(str, shown)) == answer.text
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    prompt = [table[token].decoded_token for token, table in pairs]
    assert "".join(map(str, prompt)) == TEXTS[0][1:]


def test_a_vocabulary_larger_than_the_tokenizers(full_folder: Path) -> None:
    few = {"a": 0, "<s>": 1, "</s>": 2, "b": 3, "c": 4}
    backend = Backend(models.BPE(few, []))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    with tiny_engine(full_folder, tokenizer=tokenizer) as own:
        params = GREEDY.clone(logprobs=-1, prompt_logprobs=1, stop=["cc"])
        output = own.generate("abc", params)[0]
        assert len(output.outputs[0].token_ids) == 12, "ids without text are answers as well"
        assert set(output.outputs[0].text) <= set("abc")
        assert list(own.stream("abc", kind(params, "DELTA")))[-1].finished


# Sampling options, recomputed in numpy from the model's logits without a cache


@pytest.fixture(scope="module")
def score(full_folder: Path) -> Any:
    """Next-token logits after a text, from the model alone."""
    model = load_model(full_folder)

    def logits(tokens: list[int]) -> np.ndarray:
        return plain_logits(model, tokens)[-1].astype(np.float64)

    return logits


def replay(score: Any, prompt: list[int], answer: list[int], adjust: Any) -> None:
    """Each token must be the best one of the adjusted logits."""
    for index, token in enumerate(answer):
        logits = adjust(score(prompt + answer[:index]), answer[:index])
        assert logits[token] >= logits.max() - 1e-4


def test_penalties(llm: jengine.LLM, score: Any) -> None:
    options = {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": 0.9}
    prompt = PROMPTS[0]

    def adjust(logits: np.ndarray, generated: list[int]) -> np.ndarray:
        counts = np.bincount(generated, minlength=VOCAB)
        seen = (counts > 0) | (np.bincount(prompt, minlength=VOCAB) > 0)
        penalised = np.where(logits > 0, logits / 1.4, logits * 1.4)
        logits = np.where(seen, penalised, logits)
        return logits - 0.9 * counts - 0.6 * (counts > 0)

    answer = only(llm, prompt, max_tokens=20, **options).token_ids
    replay(score, prompt, answer, adjust)
    assert answer != only(llm, prompt, max_tokens=20).token_ids


def test_logit_bias_and_allowed_tokens(llm: jengine.LLM, score: Any) -> None:
    bias = {11: 3.0, "12": -2.0}
    allowed = [10, 11, 12, 50, 51]

    def adjust(logits: np.ndarray, _: list[int]) -> np.ndarray:
        biased = logits.copy()
        biased[11] += 3.0
        biased[12] -= 2.0
        kept = np.full(VOCAB, -np.inf)
        kept[allowed] = biased[allowed]
        return kept

    options: dict[str, Any] = {"logit_bias": bias, "allowed_token_ids": allowed}
    answer = only(llm, PROMPTS[0], max_tokens=12, **options).token_ids
    assert set(answer) <= set(allowed)
    replay(score, PROMPTS[0], answer, adjust)


def test_bad_words(text_llm: jengine.LLM) -> None:
    free = only(text_llm, TEXTS[0], max_tokens=20, **LETTERS)
    word = free.text[3:5]
    banned = only(text_llm, TEXTS[0], max_tokens=20, **LETTERS, bad_words=[word, free.text[9]])
    assert word not in banned.text and free.text[9] not in banned.text
    at = min(free.text.index(word) + 1, free.text.index(free.text[9]))
    assert banned.text[:at] == free.text[:at], "nothing changes before the first forbidden token"


def test_seeds_are_reproducible_and_differ(llm: jengine.LLM) -> None:
    def draw(seed: int | None) -> list[int]:
        return only(llm, PROMPTS[0], temperature=1.5, seed=seed, max_tokens=12).token_ids

    assert draw(1) == draw(1) != draw(2)
    assert draw(None) != draw(None), "without a seed each request has its own"
    assert draw(-1) != draw(-1), "-1 means none"


def test_the_engines_seed_fixes_a_whole_run(full_folder: Path, llm: jengine.LLM) -> None:
    input_processor = llm.engine.session.input_processor
    params = SamplingParams(temperature=1.5, max_tokens=8, ignore_eos=True)
    state = input_processor._seeds.getstate()
    first = answers(llm.generate(PROMPTS, params))
    input_processor._seeds.setstate(state)
    assert answers(llm.generate(PROMPTS, params)) == first


def test_a_temperature_of_almost_nothing_is_greedy(llm: jengine.LLM) -> None:
    greedy = only(llm, PROMPTS[0]).token_ids
    assert only(llm, PROMPTS[0], temperature=0.01, seed=4).token_ids == greedy
    assert only(llm, PROMPTS[0], temperature=2.0, top_k=1, seed=4).token_ids == greedy
    assert only(llm, PROMPTS[0], temperature=1.0, top_p=1e-6, seed=4).token_ids == greedy


# Prompts, cache salts, metrics


def test_every_way_to_write_a_prompt(text_llm: jengine.LLM, letters: Any) -> None:
    ids = letters(TEXTS[0])["input_ids"]
    forms: list[Any] = [
        TEXTS[0], ids, tuple(ids), np.asarray(ids), {"prompt": TEXTS[0]},
        {"prompt_token_ids": ids}, {"prompt_token_ids": ids, "prompt": "shown"},
        jengine.TextPrompt(prompt=TEXTS[0]), jengine.TokensPrompt(prompt_token_ids=ids),
    ]  # fmt: skip
    outputs = text_llm.generate(forms, GREEDY)
    assert {tuple(output.outputs[0].token_ids) for output in outputs} == {
        tuple(outputs[0].outputs[0].token_ids)
    }
    assert all(output.prompt_token_ids == ids for output in outputs)
    texts = [output.prompt for output in outputs]
    assert texts == [
        TEXTS[0], None, None, None, TEXTS[0], None, "shown", TEXTS[0], None
    ]  # fmt: skip


def test_a_cache_salt_keeps_prefixes_apart(llm: jengine.LLM) -> None:
    ids = random_prompts(64, seed=99)[0]

    def cached(**more: Any) -> int:
        return llm.generate({"prompt_token_ids": ids, **more}, GREEDY)[0].num_cached_tokens

    assert (cached(), cached()) == (0, 48)
    assert (cached(cache_salt="mine"), cached(cache_salt="mine")) == (0, 48)
    assert cached(cache_salt="yours") == 0
    assert llm.reset_prefix_cache()
    assert cached() == 0


def test_the_cache_can_be_forgotten_while_requests_run(llm: jengine.LLM) -> None:
    [expected] = llm.generate(PROMPTS[0], GREEDY)
    llm.reset_prefix_cache()
    preemptions = llm.stats().preemptions
    outputs = []
    for output in llm.stream(PROMPTS[0], GREEDY):
        outputs.append(output)
        if len(outputs) == 3:
            assert not llm.reset_prefix_cache()
            assert llm.reset_prefix_cache(reset_running_requests=True)
            assert llm.stats().cache_usage == 0
    assert outputs[-1].outputs[0].token_ids == expected.outputs[0].token_ids
    assert llm.stats().preemptions == preemptions + 1


def test_metrics_are_there(llm: jengine.LLM) -> None:
    metrics = llm.generate(PROMPTS[0], GREEDY)[0].metrics
    assert metrics.time_to_first_token is not None and metrics.finished is not None
    assert 0 < metrics.time_to_first_token <= metrics.finished
    assert "running 0, waiting 0" in str(llm.stats())


def test_defaults_come_from_the_model(full_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(full_folder, tmp_path / "copy"))
    settings = {"temperature": 0.0, "max_new_tokens": 3, "eos_token_id": [2, 50]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    with tiny_engine(folder) as own:
        defaults = own.get_default_sampling_params()
        assert defaults == SamplingParams(temperature=0.0, max_tokens=3)
        first, second = own.generate(PROMPTS[:2])
        assert len(first.outputs[0].token_ids) <= 3
        ended = only(own, PROMPTS[0], ignore_eos=False, logit_bias={50: 100.0})
        assert (ended.token_ids, ended.finish_reason) == ([50], "stop")
        assert second.finished


# Queueing, chat, bars


def test_enqueue_then_wait(llm: jengine.LLM) -> None:
    params = mixed_params()[: len(PROMPTS)]
    expected = answers(llm.generate(PROMPTS, params))
    first = llm.enqueue(PROMPTS[0], params[0])
    rest = llm.enqueue(PROMPTS[1:], params[1:])
    assert llm.stats().waiting == len(PROMPTS)
    outputs = llm.wait_for_completion()
    assert [output.request_id for output in outputs] == [*first, *rest]
    assert answers(outputs) == expected
    assert llm.wait_for_completion() == []


CONVERSATION = [{"role": "user", "content": "Hi"}]


def test_chat_renders_the_template(text_llm: jengine.LLM, letters: Any) -> None:
    output = text_llm.chat(CONVERSATION, GREEDY)[0]
    assert output.prompt == "<s>user:Hi</s><s>assistant:"
    assert output.prompt_token_ids[0] == 1 and output.prompt_token_ids.count(1) == 2
    by_hand = text_llm.generate({"prompt_token_ids": output.prompt_token_ids}, GREEDY)
    assert answers(by_hand)[0] == answers([output])[0]
    streamed = list(text_llm.stream_chat(CONVERSATION, GREEDY))[-1]
    assert streamed.outputs == output.outputs
    assert len(text_llm.enqueue_chat([CONVERSATION, CONVERSATION], GREEDY)) == 2
    assert answers(text_llm.wait_for_completion()) == [answers([output])[0]] * 2


def test_chat_takes_one_conversation_or_several(text_llm: jengine.LLM) -> None:
    several = text_llm.chat([CONVERSATION, CONVERSATION * 2], GREEDY)
    assert [output.prompt for output in several] == [
        "<s>user:Hi</s><s>assistant:",
        "<s>user:Hi</s><s>user:Hi</s><s>assistant:",
    ]
    bare = text_llm.chat(CONVERSATION, GREEDY, add_generation_prompt=False)[0]
    assert bare.prompt == "<s>user:Hi</s>"
    own = text_llm.chat(CONVERSATION, GREEDY, chat_template="{{ messages[0].content }}!")[0]
    assert own.prompt == "Hi!"
    with pytest.raises(TypeError, match=r"add_generation_promt.*add_generation_prompt"):
        text_llm.chat(CONVERSATION, GREEDY, add_generation_promt=True)


class Bar:
    """A tqdm that remembers what it was told."""

    made: list[Bar] = []

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.count = 0
        self.postfixes: list[str] = []
        Bar.made.append(self)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        self.count += count

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self.postfixes.append(text)


def test_progress_bars(llm: jengine.LLM) -> None:
    Bar.made = []
    params = [GREEDY, GREEDY, SamplingParams(n=3, seed=1, max_tokens=4)]
    llm.generate(PROMPTS, params, use_tqdm=Bar)
    rendering, processed = Bar.made
    assert (rendering.options["desc"], rendering.options["total"]) == ("Rendering prompts", 3)
    assert rendering.count == 3
    assert (processed.options["desc"], processed.options["total"]) == ("Processed prompts", 3)
    assert processed.count == 5, "each finished request counts its outputs"
    pattern = r"est\. speed input: \d+\.\d\d toks/s, output: \d+\.\d\d toks/s"
    for text in processed.postfixes:
        assert re.fullmatch(pattern, text)


# jengine.generate(...)


@pytest.fixture
def one_line(full_folder: Path, letters: PreTrainedTokenizerFast) -> Iterator[dict[str, Any]]:
    """Engine settings for jengine.generate, with the shared programs; its engines end here."""
    yield {
        "tokenizer": letters, "enforce_eager": True, "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_logprobs": -1,
        "compilation_config": {
            "decode_rows": [8], "prefill_tokens": [256], "variants": ["scored"]
        },
    }  # fmt: skip
    jengine.clear()


def test_the_one_liner(full_folder: Path, one_line: dict[str, Any], text_llm: jengine.LLM) -> None:
    expected = text_llm.generate(TEXTS, SamplingParams(temperature=0, max_tokens=7))
    outputs = jengine.generate(full_folder, TEXTS, temperature=0, max_tokens=7, **one_line)
    assert answers(outputs) == answers(expected)
    ((_, _, kept),) = _kept
    renamed = jengine.generate(full_folder, TEXTS, do_sample=False, max_new_tokens=7, **one_line)
    assert answers(renamed) == answers(expected)
    assert [llm for _, _, llm in _kept] == [kept], "the engine of the first call is used again"
    params = SamplingParams(temperature=0, max_tokens=7)
    assert answers(jengine.generate(full_folder, TEXTS, params, **one_line)) == answers(expected)
    several = jengine.generate(
        full_folder, TEXTS[0], num_return_sequences=3, seed=5, max_new_tokens=9,
        eos_token_id=50, stop_strings=["q"], num_beams=1, do_sample=True, **one_line,
    )  # fmt: skip
    same = SamplingParams(n=3, seed=5, max_tokens=9, stop_token_ids=[50], stop=["q"])
    assert answers(several) == answers(text_llm.generate(TEXTS[0], same))
    jengine.clear()
    assert not _kept
    with pytest.raises(EngineDead):
        kept.generate(TEXTS)
    jengine.clear()


@pytest.mark.parametrize(
    ("options", "kind_of_error", "complaint"),
    [
        ({"max_new_tokens": 5, "max_tokens": 5}, RequestError, "mean the same"),
        ({"do_sample": False, "temperature": 0.5}, RequestError, "mean the same"),
        ({"num_return_sequences": 2, "n": 2}, RequestError, "mean the same"),
        ({"eos_token_id": 5, "stop_token_ids": [5]}, RequestError, "mean the same"),
        ({"stop_strings": "a", "stop": "a"}, RequestError, "mean the same"),
        ({"num_beams": 4}, UnsupportedFeature, "beam_width=4"),
        ({"max_new_token": 4}, TypeError, "Did you mean 'max_new_tokens'"),
        ({"temperature": -1}, RequestError, "temperature=-1"),
    ],
)
def test_the_one_liner_refuses(
    full_folder: Path,
    one_line: dict[str, Any],
    options: dict[str, Any],
    kind_of_error: type[Exception],
    complaint: str,
) -> None:
    with pytest.raises(kind_of_error, match=complaint):
        jengine.generate(full_folder, TEXTS, **options, **one_line)


def test_the_one_liner_refuses_parameters_twice(
    full_folder: Path, one_line: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match="sampling_params and max_tokens were both given"):
        jengine.generate(full_folder, TEXTS, GREEDY, max_tokens=4, **one_line)


def test_texts_of_tokens_come_with_the_text(text_llm: jengine.LLM) -> None:
    wanted = {"max_tokens": 3, "logprobs": 1, "prompt_logprobs": 1}
    shown, plain = (
        text_llm.generate(
            TEXTS[0], SamplingParams(temperature=0, detokenize=detokenize, **wanted), use_tqdm=False
        )[0]
        for detokenize in (True, False)
    )
    assert plain.outputs[0].text == "" and shown.outputs[0].token_ids == plain.outputs[0].token_ids
    for output, has_text in ((shown, True), (plain, False)):
        tables = [*output.outputs[0].logprobs, *output.prompt_logprobs[1:]]  # type: ignore[misc, index]
        entries = [entry for table in tables for entry in table.values()]
        assert all((entry.decoded_token is not None) == has_text for entry in entries)
