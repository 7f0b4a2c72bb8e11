"""Prompts of models with an encoder of text, without a model."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from jengine.demo import model_path
from jengine.engine.input_processor import renderer_for
from jengine.engine.limits import Limits
from jengine.engine.source_renderer import SourceRules
from jengine.errors import RequestError
from jengine.media_spans import FOREVER, MediaSpan
from jengine.runner.step.text_packing import TextPacker
from jengine.text.tokenizer import load_tokenizer

START, FORCED = 2, 0
POSITIONS = 6
LIMITS = Limits(50, 20, 5, (START,))
RENDERER = renderer_for(LIMITS, None, SourceRules(POSITIONS, START, FORCED))


def test_plain_ids_are_the_encoders_prompt() -> None:
    prompt = RENDERER.render([5, 6, 7])
    assert prompt["prompt_token_ids"] == [START, FORCED]
    (span,) = prompt["media"]
    assert (span.length, span.kind, span.end) == (3, "text", FOREVER)
    assert np.frombuffer(span.values, np.int32).tolist() == [5, 6, 7]
    assert RENDERER.render(prompt) == prompt, "what is rendered stays as it is"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [START, FORCED]),
        ([START], [START, FORCED]),
        ([9, START], [START, 9, START]),
        ({"prompt_token_ids": [START, 9]}, [START, 9]),
    ],
)
def test_the_decoders_prompt_begins_with_the_start_token(
    given: object, expected: list[int]
) -> None:
    prompt = RENDERER.render({"encoder_prompt": [5], "decoder_prompt": given})
    assert prompt["prompt_token_ids"] == expected


def test_only_the_encoders_text_has_special_tokens() -> None:
    tokenizer = load_tokenizer(model_path())
    first, last = tokenizer.hf.convert_ids_to_tokens([3, 4])
    tokenizer.hf.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, 3), (last, 4)]
    )
    limits = Limits(tokenizer.vocab_size, 20, 5, (START,))
    renderer = renderer_for(limits, tokenizer, SourceRules(9, START))
    plain = tokenizer.encode("Once upon", False)
    prompt = renderer.render({"encoder_prompt": "Once upon", "decoder_prompt": "Once upon"})
    assert prompt["prompt_token_ids"] == [START, *plain]
    assert np.frombuffer(prompt["media"][0].values, np.int32).tolist() == [3, *plain, 4]


def test_each_prompt_has_its_own_limit() -> None:
    RENDERER.render({"encoder_prompt": [5] * 6, "decoder_prompt": [5] * 18})
    with pytest.raises(RequestError, match="maximum context length is 6"):
        RENDERER.render([5] * 7)
    with pytest.raises(RequestError, match="maximum context length is 20"):
        RENDERER.render({"encoder_prompt": [5], "decoder_prompt": [5] * 19})


def test_other_prompts_are_refused() -> None:
    with pytest.raises(RequestError, match="takes no images"):
        RENDERER.render({"prompt_token_ids": [5], "multi_modal_data": {"image": 1}})
    with pytest.raises(RequestError, match="got the keys 'encoder_prompt', 'prompt'"):
        RENDERER.render({"encoder_prompt": [5], "prompt": "x"})
    with pytest.raises(RequestError, match="conversations are not supported"):
        RENDERER.render_chat("x")


def test_texts_are_packed_one_after_the_other() -> None:
    def placed(ids: list[int], rows: list[int]) -> MediaSpan:
        values = np.asarray(ids, np.int32).tobytes()
        return MediaSpan(
            0, len(ids), "", "text", (1, 1, len(ids)), (0, 0, 0), values=values,
            rows=np.asarray(rows, np.int32).tobytes(),
        )  # fmt: skip

    packed = TextPacker(4).pack([placed([5, 6], [3, 1]), placed([7], [2])], 5, 9)
    assert packed.ids.tolist() == [5, 6, 7, 0, 0]
    assert packed.positions.tolist() == [0, 1, 0, 0, 0]
    assert packed.segments.tolist() == [0, 0, 1, -1, -1]
    assert packed.rows.tolist() == [3, 1, 2, 9, 9]
