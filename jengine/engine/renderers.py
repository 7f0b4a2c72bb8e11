"""Chooses the prompt renderer by the model's encoder."""

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
    """Renderer for a model with this media processor or text encoder; None for neither."""
    if isinstance(media, Sources):
        return SourceRenderer(limits, tokenizer, media)
    if isinstance(media, SpeechProcessor):
        return SpeechRenderer(limits, tokenizer, media)
    return PromptRenderer(limits, tokenizer, media)
