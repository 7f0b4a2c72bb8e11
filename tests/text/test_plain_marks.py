"""Words in chat messages that look like special tokens of media: text, whoever writes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from jengine.engine.limits import Limits
from jengine.engine.prompt_renderer import PromptRenderer
from jengine.media.processor import MediaProcessor
from jengine.text.plain_marks import PlainMarks
from jengine.text.tokenization import Tokenization
from jengine.text.tokenizer import Tokenizer

PAD = "<|image_pad|>"


@pytest.fixture(scope="module", params=[True, False])
def prompts(request: pytest.FixtureRequest) -> PromptRenderer:
    """Of a model with images, whose placeholder is a special token or merely an added one."""
    characters = {chr(code): code - 32 for code in range(32, 127)}
    hf = PreTrainedTokenizerFast(tokenizer_object=Backend(models.BPE(characters, [])))
    hf.add_tokens([AddedToken(PAD, special=request.param)])
    tokens = dict.fromkeys(("video_token", "start_token", "end_token"))
    vision: Any = SimpleNamespace(
        family="llava", placeholder=95, image_token=95, wraps=True, **tokens
    )
    media = MediaProcessor(vision, {})
    return PromptRenderer(Limits(96, 100, 20, ()), Tokenizer(hf), media)


def test_typed_placeholders_are_text(prompts: PromptRenderer) -> None:
    assert prompts.image_text == PAD
    typed = [{"role": "user", "content": f"a{PAD}b"}]
    (message,), images = prompts.without_images(typed)
    assert PAD not in message["content"] and images == []
    rendered = prompts.render_chat(f"{PAD}!{message['content']}?")
    assert rendered["prompt"] == f"{PAD}!a{PAD}b?"
    ids = rendered["prompt_token_ids"]
    assert ids.count(95) == 1 and ids[0] == 95, "the template's own"
    text = prompts.required_tokenizer().decode(ids[1:]).replace(" ", "")
    assert text == f"!a{PAD}b?"
    short = prompts.render_chat(message["content"], Tokenization(truncate_prompt_tokens=5))
    assert len(short["prompt_token_ids"]) == 5


def test_texts_of_parts_are_marked_and_other_parts_kept() -> None:
    marks = PlainMarks([PAD, "<|image"])
    picture = {"type": "image_url", "image_url": {"url": PAD}}
    content = ["<|image!", picture, {"type": "text", "text": f"x{PAD}"}]
    (message,) = marks.hidden([{"role": "user", "content": content}])
    first, same, last = message["content"]
    assert same == picture and "<|image" not in first + last["text"]
    assert marks.parts(last["text"]) == [("x", False), (PAD, True)]
    assert marks.shown(first) == "<|image!"
    assert PlainMarks([PAD]).parts(last["text"]) == [(last["text"], False)], "other digits"
    assert PlainMarks([]).parts(PAD) == [(PAD, False)]
