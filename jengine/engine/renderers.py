"""Which renderer of prompts a model has, by what it reads besides them."""

from __future__ import annotations

from jengine.engine.limits import Limits
from jengine.engine.prompt_renderer import PromptRenderer
from jengine.engine.source_renderer import SourceRenderer, Sources
from jengine.engine.speech_renderer import SpeechRenderer
from jengine.media.processor import MediaProcessor
from jengine.media.speech import SpeechProcessor
from jengine.text.tokenizer import Tokenizer


def renderer_for(
    limits: Limits,
    tokenizer: Tokenizer | None,
    media: MediaProcessor | SpeechProcessor | Sources | None,
) -> PromptRenderer:
    """The renderer for what the model reads besides its prompt; None: nothing."""
    if isinstance(media, Sources):
        return SourceRenderer(limits, tokenizer, media)
    if isinstance(media, SpeechProcessor):
        return SpeechRenderer(limits, tokenizer, media)
    return PromptRenderer(limits, tokenizer, media)
