"""Prompts become token ids: options of tokenization, truncation, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jengine.demo import model_path
from jengine.engine.limits import Limits
from jengine.engine.prompt_renderer import PromptRenderer
from jengine.errors import JengineError, RequestError
from jengine.text.tokenization import AS_USUAL, Tokenization, checked_tokenization
from jengine.text.tokenizer import Tokenizer, load_tokenizer

CONTEXT = 24
TEXT = "One day a little girl named Lily went to the garden with her dog."
LONG = " ".join([TEXT] * 60)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(model_path())


@pytest.fixture(scope="module")
def renderer(tokenizer: Tokenizer) -> PromptRenderer:
    return PromptRenderer(Limits(tokenizer.vocab_size, CONTEXT, 0, (2,)), tokenizer)


def ids(renderer: PromptRenderer, prompt: Any, **options: Any) -> list[int]:
    return renderer.render(prompt, checked_tokenization(options))["prompt_token_ids"]


@pytest.mark.parametrize("form", ["text", "dict", "ids", "ids in a dict", "chat"])
def test_a_prompt_is_cut_to_so_many_tokens(
    renderer: PromptRenderer, tokenizer: Tokenizer, form: str
) -> None:
    whole = tokenizer.encode(LONG)
    prompt = {
        "text": LONG, "dict": {"prompt": LONG}, "ids": whole,
        "ids in a dict": {"prompt_token_ids": whole}, "chat": LONG,
    }[form]  # fmt: skip
    render = renderer.render_chat if form == "chat" else renderer.render
    with pytest.raises(RequestError, match=r"maximum context length|characters, at most"):
        render(prompt)
    for options, expected in (
        ({"truncate_prompt_tokens": 5}, whole[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, whole[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, whole[:5]),
        ({"truncate_prompt_tokens": -1}, whole[1 - CONTEXT :]),
        ({"truncation": True}, whole[1 - CONTEXT :]),
        ({"truncation": True, "max_length": 4}, whole[-4:]),
        ({"truncate_prompt_tokens": -1, "truncation_side": "right"}, whole[: CONTEXT - 1]),
    ):
        assert render(prompt, checked_tokenization(options))["prompt_token_ids"] == expected


def test_a_short_prompt_stays_as_it_is(renderer: PromptRenderer, tokenizer: Tokenizer) -> None:
    assert ids(renderer, TEXT, truncate_prompt_tokens=-1) == tokenizer.encode(TEXT)
    assert ids(renderer, [5, 6], truncate_prompt_tokens=2) == [5, 6]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prompt_that_is_only_read_is_cut_as_the_tokenizer_does(
    tokenizer: Tokenizer, side: str
) -> None:
    own = load_tokenizer(model_path())
    own.hf.truncation_side = side
    renderer = PromptRenderer(Limits(own.vocab_size, CONTEXT, 0, (2,), answer_room=0), own)
    whole = tokenizer.encode(LONG)
    kept = whole[-5:] if side == "left" else whole[:5]
    assert ids(renderer, LONG, truncate_prompt_tokens=5) == kept
    assert ids(renderer, whole, truncate_prompt_tokens=5) == kept
    assert ids(renderer, LONG, truncate_prompt_tokens=5, truncation_side="right") == whole[:5]


def test_a_prompts_end_stays_and_so_does_the_tokenizers_side(
    renderer: PromptRenderer, tokenizer: Tokenizer
) -> None:
    assert ids(renderer, LONG, truncate_prompt_tokens=5) == tokenizer.encode(LONG)[-5:]
    assert renderer.required_tokenizer().truncation_side == "right"


def test_an_endless_text_is_cut_before_it_is_tokenized(
    renderer: PromptRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    encode = Tokenizer.encode

    def watched(self: Tokenizer, text: str, *rest: Any, **options: Any) -> list[int]:
        seen.append(len(text))
        return encode(self, text, *rest, **options)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    assert len(ids(renderer, "a" * 10**6, truncate_prompt_tokens=5)) == 5
    assert seen == [64 * CONTEXT]


def test_lower_case_and_special_tokens(renderer: PromptRenderer, tokenizer: Tokenizer) -> None:
    assert ids(renderer, TEXT, do_lower_case=True) == tokenizer.encode(TEXT.lower())
    plain = ids(renderer, TEXT, add_special_tokens=False)
    assert plain == tokenizer.encode(TEXT, add_special_tokens=False)
    assert renderer.render(TEXT)["prompt"] == TEXT


def test_values_that_change_nothing() -> None:
    options = {"padding": False, "truncation": None, "truncate_prompt_tokens": None,
               "truncation_side": None, "add_special_tokens": None}  # fmt: skip
    assert checked_tokenization(options) == checked_tokenization(None) == AS_USUAL
    assert checked_tokenization({"truncation": "do_not_truncate"}) == AS_USUAL
    assert checked_tokenization({"add_special_tokens": True}) == Tokenization(True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("left", "tokenization_kwargs='left': expected a dict"),
        ({"truncate_tokens": 5}, "no key 'truncate_tokens'.*Did you mean 'truncate_prompt_tokens'"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens=0: expected an integer of at"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens=-2"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens=True"),
        ({"truncate_prompt_tokens": CONTEXT + 1}, f"above the model's context of {CONTEXT} tokens"),
        ({"truncation_side": "middle"}, "truncation_side='middle': expected one of 'left'"),
        ({"add_special_tokens": 1}, "add_special_tokens=1: expected one of True"),
        ({"truncation": "only_first"}, "truncation='only_first': expected one of"),
        ({"max_length": 5}, "max_length without truncation=True"),
        ({"padding": True}, "a prompt is never padded"),
    ],
)
def test_options_that_are_refused(renderer: PromptRenderer, options: Any, complaint: str) -> None:
    with pytest.raises(JengineError, match=complaint):
        renderer.render(TEXT, checked_tokenization(options))


def test_parts_of_prompts_that_are_not_there_may_be_none(renderer: PromptRenderer) -> None:
    whole = renderer.render({"prompt": TEXT, "multi_modal_data": None, "prompt_embeds": None})
    assert whole == renderer.render(TEXT)
    with pytest.raises(RequestError, match="takes no images"):
        renderer.render({"prompt": TEXT, "multi_modal_data": {"image": b""}})
