"""Bad input gets a clear error, queues nothing, and leaves the engine answering as before."""

from __future__ import annotations

import json
import math
import shutil
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import RequestOutputKind, SamplingParams
from jengine.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    JengineError,
    RequestError,
    UnsupportedFeature,
)
from jengine.sampling_params import PARAMETERS
from tests.api.engines import MAX_MODEL_LEN, VOCAB, is_idle, tiny_engine

PROMPT = [5, 6, 7]
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture
def still_answers(full_engine: jengine.LLM) -> Iterator[jengine.LLM]:
    """The engine; afterwards it must be idle and give the answer it always gives."""
    before = full_engine.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
    yield full_engine
    assert is_idle(full_engine)
    assert full_engine.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == before


# Prompts


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        ([[]], "the prompt is empty"),
        ([PROMPT, []], "the prompt is empty"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ([5, -1], f"has -1; token ids of this model go from 0 to {VOCAB - 1}"),
        ([5, VOCAB], rf"has {VOCAB}; token ids of this model go from 0 to {VOCAB - 1}"),
        ([5, 2**31], f"has {2**31}; token ids"),
        ([5, 2**70], f"has {2**70}; token ids"),
        ((np.int64(5), np.int64(-1)), r"prompt_token_ids\[1\]=-1: expected an integer"),
        ([[5, 1.5]], r"prompt_token_ids\[1\]=1.5: expected an integer"),
        ([[True, 5]], r"prompt_token_ids\[0\]=True: expected an integer"),
        ([[5, None]], r"prompt_token_ids\[1\]=None: expected an integer"),
        ([[5, "a"]], r"prompt_token_ids\[1\]='a': expected an integer"),
        (np.array([1.0, 2.0]), "expected"),
        (np.ones((2, 2, 2), int), r"shape \(2, 2, 2\); expected one dimension"),
        (5, "prompts is a int"),
        (None, "prompts is a NoneType"),
        (b"bytes", "prompts is a bytes"),
        ([b"bytes"], "bytes"),
        ([None], "prompt_token_ids=None: expected a list"),
        ("text", "no tokenizer"),
        ({"prompt": "text"}, "no tokenizer"),
        ({}, "NoneType"),
        ({"prompt_tokens": [1]}, "no key 'prompt_tokens'.*Did you mean 'prompt_token_ids'"),
        ({"prompt_token_ids": PROMPT, "cache_salt": ""}, "cache_salt: expected a string of 1"),
        ({"prompt_token_ids": PROMPT, "cache_salt": "x" * 2000}, "cache_salt: expected"),
        ({"prompt_token_ids": PROMPT, "cache_salt": 5}, "cache_salt: expected"),
        ([3] * MAX_MODEL_LEN, f"maximum context length.*contains {MAX_MODEL_LEN} input tokens"),
        ([3] * (MAX_MODEL_LEN + 1), "maximum context length"),
        ([3] * 100_000, "maximum context length"),
    ],
)
def test_prompts(still_answers: jengine.LLM, prompt: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        still_answers.generate(prompt, GREEDY)


def test_no_prompts_get_no_answers(text_llm: jengine.LLM) -> None:
    for nothing in ([], (), np.array([], np.int32)):
        assert text_llm.generate(nothing, GREEDY) == []
    assert text_llm.generate([], []) == []
    assert text_llm.chat([], GREEDY) == []
    assert list(text_llm.stream([], GREEDY)) == []
    assert text_llm.enqueue([], GREEDY) == text_llm.enqueue_chat([], GREEDY) == []
    assert text_llm.wait_for_completion() == []
    with pytest.raises(RequestError, match="sampling_params has 1 entries for 0 prompts"):
        text_llm.generate([], [GREEDY])


def test_a_prompt_may_leave_room_for_one_token_only(still_answers: jengine.LLM) -> None:
    output = still_answers.generate([[3] * (MAX_MODEL_LEN - 1)], GREEDY)[0]
    assert len(output.outputs[0].token_ids) == 1
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("bad", [[], [VOCAB], [3] * MAX_MODEL_LEN, "text", [1.5]])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_prompt_queues_none_of_the_list(
    still_answers: jengine.LLM, bad: Any, place: int
) -> None:
    prompts = [PROMPT, PROMPT]
    prompts.insert(place, bad)
    for call in (still_answers.generate, still_answers.enqueue, still_answers.stream):
        with pytest.raises(RequestError):
            call(prompts, GREEDY)
        assert is_idle(still_answers)
    assert still_answers.wait_for_completion() == []


def test_one_bad_set_of_parameters_queues_none_of_the_list(still_answers: jengine.LLM) -> None:
    bad = SamplingParams(allowed_token_ids=[VOCAB])
    with pytest.raises(RequestError, match=rf"allowed_token_ids has {VOCAB}"):
        still_answers.enqueue([PROMPT, PROMPT, PROMPT], [GREEDY, GREEDY, bad])
    assert is_idle(still_answers)


def test_parameters_must_match_the_prompts(still_answers: jengine.LLM) -> None:
    with pytest.raises(RequestError, match="sampling_params has 1 entries for 2 prompts"):
        still_answers.generate([PROMPT, PROMPT], [GREEDY])
    with pytest.raises(RequestError, match="priority has 3 entries for 2 prompts"):
        still_answers.generate([PROMPT, PROMPT], GREEDY, priority=[1, 2, 3])
    with pytest.raises(RequestError, match="sampling_params is a dict; expected SamplingParams"):
        still_answers.generate(PROMPT, {"temperature": 0})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="priority='high': expected an integer"):
        still_answers.generate(PROMPT, GREEDY, priority="high")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"priority=.*expected an integer from"):
        still_answers.generate(PROMPT, GREEDY, priority=2**40)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the prompt is empty"),
        ("x" * 5000, "maximum context length"),
        ("x" * 1_000_000, "characters, at most"),
        ("half of \ud83d a pair", "surrogate"),
        ("\udcff", "surrogate"),
        ({"prompt": 5}, "a prompt is a int"),
        ({"prompt": None}, "a prompt is a NoneType"),
        ({"prompt_token_ids": [5], "prompt": 5}, "prompt is a int; expected a string"),
    ],
)
def test_texts(text_llm: jengine.LLM, text: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        text_llm.generate(text, GREEDY)
    with pytest.raises(RequestError, match=complaint):
        text_llm.generate(["fine", text], GREEDY)


@pytest.mark.parametrize("text", [" ", "</s>", "<s></s>", "a\x00b", "h\u00e9llo", "\n\t"])
def test_odd_texts_are_answered_or_refused_as_empty(text_llm: jengine.LLM, text: str) -> None:
    try:
        output = text_llm.generate(text, GREEDY)[0]
    except RequestError as error:
        assert "the prompt is empty" in str(error)
    else:
        assert output.finished and output.error is None


@pytest.mark.parametrize(
    "messages", [[[]], "hi", [{"role": "user"}], [{"content": "x"}], [5], None, [{}]]
)
def test_conversations_that_are_none(text_llm: jengine.LLM, messages: Any) -> None:
    with pytest.raises(RequestError):
        text_llm.chat(messages, GREEDY)


def test_text_features_need_a_tokenizer(still_answers: jengine.LLM) -> None:
    for params in (SamplingParams(stop="x"), SamplingParams(bad_words=["x"])):
        with pytest.raises(RequestError, match="tokenizer"):
            still_answers.generate(PROMPT, params)
    with pytest.raises(RequestError, match="chat needs a tokenizer"):
        still_answers.chat([{"role": "user", "content": "hi"}])


# Parameters

NUMBERS = [name for name, one in PARAMETERS.items() if one.kind in (int, float)]


def test_numeric_fields_are_found() -> None:
    assert len(NUMBERS) == 16


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 1e308, -1e308, 2**63, -(2**63) - 1, "5", [5], {}, 1j, object()],
)
def test_numeric_parameters_refuse_what_is_no_number_in_range(name: str, value: Any) -> None:
    allowed = {("max_tokens", 2**63), ("min_tokens", 2**63), ("stream_interval", 2**63),
               ("logprobs", 2**63), ("prompt_logprobs", 2**63), ("top_k", 2**63),
               ("thinking_token_budget", 2**63),
               ("repetition_penalty", 1e308), ("repetition_penalty", 2**63)}  # fmt: skip
    if isinstance(value, (int, float)) and (name, value) in allowed:
        return  # there is no largest one; the engine has its own limits
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "min_tokens", "stream_interval",
                                  "thinking_token_budget"])  # fmt: skip
@pytest.mark.parametrize("value", [-2, True, 1.5])
def test_counts_refuse_negatives_and_bools_and_floats(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"n": 0}, "n=0"),
        ({"n": 10**9}, "n=1000000000: expected an integer from 1 to 16384"),
        ({"n": 2, "temperature": 0}, "greedy answers are all the same"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": 2.1}, "temperature=2.1"),
        ({"top_p": 0}, "top_p=0"),
        ({"min_p": -0.5}, "min_p=-0.5"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens=5 is above max_tokens=4"),
        ({"logprobs": -2}, "logprobs=-2"),
        ({"stop": ["a", ""]}, "not empty"),
        ({"stop": "a", "detokenize": False}, "detokenize=True"),
        ({"stop": ["a"] * 100_000}, "the most is 64"),
        ({"stop_token_ids": [-1]}, r"stop_token_ids\[0\]=-1"),
        ({"stop_token_ids": [1.5]}, r"stop_token_ids\[0\]=1.5"),
        ({"logit_bias": {1: math.nan}}, r"logit_bias\[1\]=nan"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias key=-1"),
        ({"logit_bias": [1]}, "expected a dict"),
        ({"allowed_token_ids": []}, "at least one token id"),
        ({"bad_words": [""]}, "non-empty strings"),
        ({"ignore_eos": 1}, "expected True or False"),
        ({"output_kind": "delta"}, "RequestOutputKind"),
    ],
)
def test_parameters(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 0), ("presence_penalty", "x"), ("temperature", math.nan), ("logprobs", "x"),
     ("top_k", 1.5), ("stop_token_ids", ["x"]), ("min_tokens", -1), ("max_tokens", None)],
)  # fmt: skip
def test_parameters_are_checked_again_when_they_are_used(
    still_answers: jengine.LLM, name: str, value: Any
) -> None:
    params = GREEDY.clone()
    setattr(params, name, value)
    if value is None:  # None is allowed, so this one is served
        assert list(still_answers.stream([3] * 760, params))[-1].finished
        return
    for call in (still_answers.generate, still_answers.stream, still_answers.enqueue):
        with pytest.raises(RequestError, match=name):
            call(PROMPT, params)


def test_parameters_changed_while_in_use_change_nothing(still_answers: jengine.LLM) -> None:
    params = GREEDY.clone(max_tokens=8)
    expected = still_answers.generate(PROMPT, params)[0].outputs
    stream = still_answers.stream(PROMPT, params)
    next(stream)
    params.output_kind = RequestOutputKind.DELTA
    params.max_tokens = 1
    assert list(stream)[-1].outputs == expected


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 2**63},
        {"top_k": 2**63},
        {"repetition_penalty": 1e308},
        {"repetition_penalty": 1e-308},
        {"top_p": 1e-308},
        {"min_p": 1e-308},
        {"min_tokens": 2**40, "max_tokens": 2**63, "stop_token_ids": [5]},
        {"seed": -(2**63)},
        {"temperature": 1e-300},
        {"logit_bias": dict.fromkeys(range(VOCAB), -100)},
        {"stop_token_ids": list(range(VOCAB)), "min_tokens": 3},
    ],
)
def test_extreme_but_valid_parameters_are_served(
    still_answers: jengine.LLM, options: dict[str, Any]
) -> None:
    prompt = [3] * (MAX_MODEL_LEN - 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of numbers that do not fit
        output = still_answers.generate([prompt], SamplingParams(**{"seed": 1, **options}))[0]
    assert output.finished and output.error is None
    assert output.outputs[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, f"logit_bias has {VOCAB}"),
        ({"stop_token_ids": [VOCAB]}, f"stop_token_ids has {VOCAB}"),
        ({"allowed_token_ids": [0, VOCAB]}, f"allowed_token_ids has {VOCAB}"),
        ({"logprobs": VOCAB + 1}, "asks for more than max_logprobs"),
        ({"prompt_logprobs": 2**63}, "asks for more than max_logprobs"),
        (
            {"prompt_logprobs": 1, "skip_reading_prefix_cache": False},
            "skip_reading_prefix_cache",
        ),
    ],
)
def test_parameters_that_do_not_fit_the_model(
    still_answers: jengine.LLM, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(RequestError, match=complaint):
        still_answers.generate(PROMPT, SamplingParams(**options))


def test_more_logprobs_than_tokens_exist_are_refused(full_folder: Path) -> None:
    with (
        tiny_engine(full_folder, max_logprobs=1000) as llm,
        pytest.raises(RequestError, match=f"max_logprobs={VOCAB}"),
    ):
        llm.generate(PROMPT, SamplingParams(logprobs=VOCAB + 1))


# Names


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("stop_tokens_ids", "stop_token_ids"),
    ],
)
def test_unknown_sampling_parameters_suggest_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=rf"SamplingParams.*{name!r}.*Did you mean {hint!r}"):
        SamplingParams(**{name: 1})


def test_unknown_engine_arguments_suggest_the_nearest(full_folder: Path) -> None:
    with pytest.raises(TypeError, match=r"LLM .*'max_num_seq'.*Did you mean 'max_num_seqs'"):
        jengine.LLM(full_folder, max_num_seq=4)
    with pytest.raises(TypeError, match=r"AsyncLLM .*'max_modellen'.*'max_model_len'"):
        jengine.AsyncLLM(full_folder, max_modellen=4)
    with pytest.raises(ConfigError, match=r"'prefil_tokens'.*Did you mean 'prefill_tokens'"):
        jengine.LLM(full_folder, compilation_config={"prefil_tokens": [32]})


def test_unknown_call_arguments_suggest_the_nearest(still_answers: jengine.LLM) -> None:
    with pytest.raises(TypeError, match=r"generate .*'priorities'.*Did you mean 'priority'"):
        still_answers.generate(PROMPT, GREEDY, priorities=[1])
    with pytest.raises(TypeError, match=r"stream .*'sampling'"):
        still_answers.stream(PROMPT, sampling=GREEDY)


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"kv_cache_dtype_skip_layers": ["0"]}, "quantization"),
        ({"default_mm_loras": {"image": "a"}}, "LoRA"),
        ({"speculative_config": {"method": "mlp_speculator"}}, "method='mlp_speculator'"),
    ],
)
def test_later_engine_features_are_named(
    full_folder: Path, options: dict[str, Any], feature: str
) -> None:
    with pytest.raises(UnsupportedFeature, match=feature):
        jengine.LLM(full_folder, **options)


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("trace_decode_token_ids", "forced decoding"),
        ("prompt_logprob_token_ids", "log-probabilities of chosen"),
    ],
)
def test_later_parameters_are_named(name: str, feature: str) -> None:
    with pytest.raises(UnsupportedFeature, match=rf"{name}=.*{feature}.*leave {name} out"):
        SamplingParams(**{name: ["x"]})
    assert SamplingParams(**{name: None}) == SamplingParams()


@pytest.mark.parametrize(
    "options",
    [{"watermarking": False}, {"skip_clone": True}, {"extra_args": {}}, {"best_of": 1},
     {"routed_experts_prompt_start": 0}, {"thinking_token_budget": -1}, {"use_beam_search": False}],
)  # fmt: skip
def test_vllms_parameters_that_ask_for_nothing_are_accepted(options: dict[str, Any]) -> None:
    assert SamplingParams(**options) == SamplingParams()


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"best_of": 3}, "ask for n answers and choose"),
        ({"truncate_prompt_tokens": 5}, "tokenization_kwargs={'truncate_prompt_tokens': 5}"),
        ({"guided_decoding": "x"}, "structured_outputs=StructuredOutputsParams"),
        ({"use_beam_search": True}, "LLM.beam_search(prompts"),
    ],
)
def test_parameters_that_vllm_dropped_say_what_to_use(options: dict[str, Any], advice: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        SamplingParams(**options)
    assert advice in str(caught.value)


def test_from_optional_takes_none_for_the_default() -> None:
    given = {"temperature": None, "n": None, "top_p": None, "repetition_penalty": None}
    assert SamplingParams.from_optional(**given, seed=None) == SamplingParams()
    assert SamplingParams.from_optional(max_tokens=None).max_tokens is None
    assert SamplingParams.from_optional(temperature=0.5, logit_bias={"3": 1000}) == SamplingParams(
        temperature=0.5, logit_bias={3: 100.0}
    )
    with pytest.raises(TypeError, match="'temprature'"):
        SamplingParams.from_optional(temprature=1)


def test_prompts_are_tokenized_as_the_caller_says(text_llm: jengine.LLM) -> None:
    options = {"truncate_prompt_tokens": 3, "truncation_side": "left"}
    (output,) = text_llm.generate("some text", GREEDY, tokenization_kwargs=options)
    assert output.prompt_token_ids == text_llm.get_tokenizer()("ext").input_ids
    assert output.prompt == "some text"
    text_llm.enqueue(["some text", "text"], GREEDY, tokenization_kwargs=options)
    talk = [{"role": "user", "content": "hello"}]
    text_llm.enqueue_chat(talk, GREEDY, tokenization_kwargs=options)
    lengths = [len(one.prompt_token_ids) for one in text_llm.wait_for_completion()]
    assert lengths == [3, 3, 3]
    (chat,) = text_llm.chat(
        talk, GREEDY, tokenization_kwargs=options, chat_template_content_format="auto"
    )
    assert len(chat.prompt_token_ids) == 3
    with pytest.raises(RequestError, match="Did you mean 'truncate_prompt_tokens'"):
        text_llm.generate("text", GREEDY, tokenization_kwargs={"truncate_prompt_token": 3})
    with pytest.raises(RequestError, match="expected one of auto, string, openai"):
        text_llm.chat(talk, GREEDY, chat_template_content_format="parts")


def test_later_call_features_are_named(still_answers: jengine.LLM) -> None:
    with pytest.raises(UnsupportedFeature, match="LoRA adapters"):
        still_answers.generate(PROMPT, GREEDY, lora_request=object())
    with pytest.raises(RequestError, match="enable_prompt_embeds=True"):
        still_answers.generate({"prompt_embeds": np.ones((2, 3))}, GREEDY)
    with pytest.raises(RequestError, match="takes no images"):
        still_answers.generate(
            {"prompt_token_ids": PROMPT, "multi_modal_data": {"image": b""}}, GREEDY
        )
    assert still_answers.generate(PROMPT, GREEDY, lora_request=None)[0].finished


# Settings


def test_a_cache_larger_than_memory_is_refused_before_anything_is_compiled(
    full_folder: Path,
) -> None:
    with pytest.raises(CapacityError, match=r"asked to take 536870\.\d+ GB, but .*leave it out"):
        tiny_engine(full_folder, kv_cache_memory_bytes="500000G")


def test_the_cache_has_the_blocks_that_were_asked_for(full_folder: Path) -> None:
    settings = {"num_gpu_blocks_override": 60, "max_model_len": 128, "block_size": 8}
    with tiny_engine(full_folder, "greedy", **settings) as llm:
        assert (llm.engine.cache.num_blocks, llm.engine.cache.block_size) == ((60,), 8)
        assert llm.generate(PROMPT, GREEDY)[0].finished


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_model_len": 100_000}, "beyond the 1024 positions"),
        ({"max_model_len": 1}, "expected at least 2"),
        ({"max_model_len": 0}, "positive integer"),
        ({"max_model_len": "many"}, "positive integer such as 4096 or '32K'"),
        ({"max_model_len": 4.5}, "positive integer"),
        ({"max_model_len": "nan"}, "positive integer"),
        ({"max_model_len": "1e999"}, "positive integer"),
        ({"max_num_seqs": -1}, "positive integer"),
        ({"max_num_batched_tokens": True}, "positive integer"),
        ({"block_size": 0}, "positive integer"),
        ({"kv_cache_memory_bytes": 1000}, "Raise kv_cache_memory_bytes"),
        ({"num_gpu_blocks_override": 48}, "needs 65 blocks.*lower max_model_len"),
        ({"num_gpu_blocks_override": 100, "kv_cache_memory_bytes": "1G"}, "give one of them"),
        ({"seed": "x"}, "seed='x': expected an integer"),
        ({"gpu_memory_utilization": 1.5}, r"share in \(0, 1\]"),
        ({"gpu_memory_utilization": math.nan}, r"share in \(0, 1\]"),
        ({"scheduling_policy": "random"}, "'fcfs', 'priority' or"),
        ({"load_format": "pickle"}, "'safetensors'"),
        ({"logprobs_mode": "raw"}, "raw_logprobs"),
        ({"max_logprobs": -2}, "max_logprobs=-2"),
        ({"dtype": "float33"}, "float33"),
        ({"compilation_config": {"variants": ["gready"]}}, "Did you mean 'greedy'"),
        ({"compilation_config": {"variants": []}}, "enforce_eager"),
        ({"compilation_config": {"decode_rows": [2]}}, "ends at 2, but a step may need 8"),
        ({"compilation_config": {"decode_rows": "all"}}, "list of integers"),
        ({"compilation_config": {"prefill_tokens": [40, 1024]}}, "multiples of 32"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 64}, "would never fit"),
    ],
)
def test_settings(full_folder: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        jengine.LLM(full_folder, **{"skip_tokenizer_init": True, **options})


def test_a_cache_directory_that_cannot_be_made_is_refused(
    full_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"'cache_dir'\]=.*cannot create it"):
        jengine.LLM(full_folder, compilation_config={"cache_dir": str(tmp_path / "file" / "x")})


# Folders


@pytest.fixture
def folder(full_folder: Path, tmp_path: Path) -> Path:
    """A copy of the model to damage."""
    return Path(shutil.copytree(full_folder, tmp_path / "copy"))


def refuse(folder: Path, complaint: str, kind: type[JengineError] = CheckpointError) -> None:
    with pytest.raises(kind, match=complaint):
        jengine.LLM(folder, skip_tokenizer_init=True)


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("name", ["no/such/model", "", "~nobody/x"])
def test_unknown_models(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"not an existing folder.*'demo'"):
        jengine.LLM(name)


def test_a_file_is_not_a_folder(folder: Path) -> None:
    refuse(folder / "config.json", "is a file")


def test_a_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refuse(folder, "no config.json")


def test_a_folder_without_tokenizer(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer: expected one of tokenizer.json"):
        jengine.LLM(folder)


def test_a_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    refuse(folder, "cannot be read as JSON")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": ["NoSuchForCausalLM"]}, "NoSuchForCausalLM"),
        ({"vocab_size": -5}, "vocab_size"),
        ({"vocab_size": "97"}, "vocab_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads|kv_heads"),
        ({"hidden_size": 1.5}, "hidden_size"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"vocab_size": 98}, "shape|98"),
        ({"tie_word_embeddings": True}, "lm_head|tie"),
        ({"num_hidden_layers": 3}, "layers.2|missing"),
    ],
)
def test_wrong_config_values(folder: Path, changes: dict[str, Any], complaint: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(JengineError, match=complaint):
        jengine.LLM(folder, skip_tokenizer_init=True)


def test_a_truncated_file(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refuse(folder, "model.safetensors")


def test_a_header_that_lies(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    name = next(key for key in header if key != "__metadata__")
    begin, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = [begin, end + 10**12]
    lie = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(lie)) + lie + content[8 + length :])
    refuse(folder, "model.safetensors")


def test_a_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse(folder, "shard 'model-00001-of-00002.safetensors' is missing")


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuse(folder, "pytorch_model.bin.*can run code")
