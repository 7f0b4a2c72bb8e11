"""Methods that vLLM's scripts call on an LLM: profiles, the world's size, waiting for outputs."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

import jengine
from jengine import AsyncLLM, RequestOutput, SamplingParams
from jengine.api.arguments import with_media_options
from jengine.errors import ConfigError, RequestError
from tests.api.engines import MAX_MODEL_LEN, tiny_engine_settings

PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@pytest.mark.parametrize("config", [{"profiler": "jax", "dir": "{}"},
                                    {"profiler": "torch", "torch_profiler_dir": "{}"}])  # fmt: skip
def test_a_profile_is_written_where_the_config_says(
    llm: jengine.LLM, tmp_path: Path, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {key: value.format(tmp_path) for key, value in config.items()}
    given = jengine.EngineArgs("demo", profiler_config=config).profiler_config
    monkeypatch.setattr(llm.engine.args, "profiler_config", given)
    llm.start_profile("warm")
    llm.generate([[5, 6, 7]], PARAMS)
    llm.stop_profile()
    asyncio.run(profiled_again(AsyncLLM.over(llm.engine)))
    for name in ("warm", "again"):
        assert list((tmp_path / name).rglob("*.xplane.pb"))


async def profiled_again(engine: AsyncLLM) -> None:
    await engine.start_profile("again")
    await engine.stop_profile()


def test_what_is_in_memory_is_told_for_pprof(llm: jengine.LLM) -> None:
    (found,) = llm.call_workers("memory_profile")
    assert b"bytes" in gzip.decompress(found)


def test_a_profile_needs_a_folder(llm: jengine.LLM) -> None:
    with pytest.raises(ConfigError, match=r"profiler_config=\{'profiler': 'jax', 'dir': folder\}"):
        llm.start_profile()


def test_the_worlds_size_is_that_of_the_mesh(llm: jengine.LLM) -> None:
    assert llm.get_world_size() == llm.get_world_size(include_dp=False) == 1


def test_what_a_model_does(llm: jengine.LLM) -> None:
    assert llm.supported_tasks == ("generate",)


def test_waiting_for_outputs_of_a_type(llm: jengine.LLM) -> None:
    llm.enqueue([[5, 6, 7]], PARAMS)
    with pytest.raises(RequestError, match="every output is a RequestOutput"):
        llm.wait_for_completion(int)
    (output,) = llm.wait_for_completion(RequestOutput)
    assert output.finished and llm.wait_for_completion((RequestOutput, int)) == []


def test_engine_args_make_an_engine(full_folder: Path) -> None:
    args = jengine.EngineArgs(full_folder, **tiny_engine_settings(enforce_eager=False))
    args.enforce_eager = True
    with jengine.LLM.from_engine_args(engine_args=args) as llm:
        assert llm.max_model_len == MAX_MODEL_LEN and llm.engine.args.enforce_eager


TALK = [{"role": "user", "content": "Hi"}]


def test_options_of_chat_follow_in_the_order_of_vllm(text_llm: jengine.LLM) -> None:
    template = "{{ messages[0].content }}{{ mark }}{% if add_generation_prompt %}>{% endif %}"
    in_order = (template, "string", False, False, None, {"mark": "!"})
    (output,) = text_llm.chat(TALK, PARAMS, False, None, [0], *in_order)
    assert output.prompt == "Hi!"
    (queued,) = text_llm.enqueue_chat(TALK, PARAMS, False, None, 1, *in_order)
    assert text_llm.engine.session.open_answers[0].request_id == queued
    assert text_llm.wait_for_completion()[0].prompt == "Hi!"


def test_too_many_options_of_chat_or_one_twice(text_llm: jengine.LLM) -> None:
    with pytest.raises(TypeError, match="multiple values for argument 'chat_template'"):
        text_llm.chat(TALK, PARAMS, False, None, None, "{{ 1 }}", chat_template="{{ 2 }}")
    with pytest.raises(TypeError, match="got 9 positional options; it knows chat_template, "):
        text_llm.chat(TALK, PARAMS, False, None, None, *[None] * 9)


def test_a_queued_prompts_adapter_and_priority_come_before_the_bar(llm: jengine.LLM) -> None:
    llm.enqueue([[5, 6, 7]], PARAMS, None, [3], False, {"truncate_prompt_tokens": 2})
    (output,) = llm.wait_for_completion()
    assert output.prompt_token_ids == [6, 7]


def test_options_of_processors_reach_prompts_of_every_form() -> None:
    own = {"prompt": "a", "mm_processor_kwargs": {"size": 1}}
    asked = {"mm_processor_kwargs": {"size": 2}}
    assert with_media_options([own, {"prompt": "b"}, "c", [5]], {"size": 2}) == [
        own, {"prompt": "b", **asked}, {"prompt": "c", **asked}, {"prompt_token_ids": [5], **asked},
    ]  # fmt: skip
    assert with_media_options("text", None) == "text"


def test_generate_takes_options_of_processors(llm: jengine.LLM) -> None:
    for ask in (llm.generate, llm.enqueue):
        with pytest.raises(RequestError, match="mm_processor_kwargs: this model takes no images"):
            ask([[5, 6]], PARAMS, mm_processor_kwargs={"max_pixels": 9})
    assert llm.generate([5, 6], PARAMS, mm_processor_kwargs={})[0].prompt_token_ids == [5, 6]


def test_outputs_are_made_with_the_fields_in_vllms_order() -> None:
    answer = jengine.CompletionOutput(0, "a", [1], None, None, None, "stop", 7)
    assert (answer.routed_experts, answer.finish_reason, answer.stop_reason) == (None, "stop", 7)
    output = RequestOutput("0", "p", [1], None, [answer], True)
    shown = repr(output)
    assert "finish_reason='stop'" in shown and not any(
        name in shown for name in ("captured", "refused", "pooled", "engine_lost")
    )


def test_a_schema_may_be_the_first_argument() -> None:
    given = jengine.StructuredOutputsParams({"type": "object"})
    assert given == jengine.StructuredOutputsParams(json={"type": "object"})


CALLED = (
    "{% for m in messages %}{{ m.content + '.' }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_a_conversation_may_hold_tool_calls_as_clients_give_them(
    text_llm: jengine.LLM, arguments: str | dict[str, int]
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    talk = [{"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "r", "tool_call_id": "1"}]  # fmt: skip
    (output,) = text_llm.chat(talk, PARAMS, False, chat_template=CALLED)
    assert output.prompt == '.{"a": 1}r.'
    assert call["function"] == {"name": "f", "arguments": arguments}


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("x", r"messages\[0\].tool_calls is a str, expected a list"),
        (["x"], r"messages\[0\].tool_calls\[0\] is a str, expected a dict"),
    ],
)
def test_tool_calls_that_are_none(text_llm: jengine.LLM, calls: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        text_llm.chat([{"role": "assistant", "tool_calls": calls}], chat_template=CALLED)
