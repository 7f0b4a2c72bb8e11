"""Sizes for an encoder of images, audio or text: its output array on the device, and its programs.
Refuses settings that do not support one.

In: settings and the model's config. Out: numbers for the scheduler and the runner.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.media_args import MediaSettings
from jengine.assembly.settings.step_args import StepSettings
from jengine.assembly.sizes.ladders import rungs
from jengine.config import ModelConfig, ScheduleConfig
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.media.options import kinds_of
from jengine.models.stages import stage_layout

USUAL_TOKENS = 8192
SMALLEST_RUN = 256  # patches
SMALLEST_TEXT = 64  # tokens per run of a text encoder
USUAL_SOURCES = 8  # audio or texts whose keys and values are kept on the device


def encoder_tokens(asked: Groups, config: ModelConfig, max_model_len: int) -> int:
    """Rows of the encoder's output array on the device: image embeddings, or positions of audio or
    text; 0 without an encoder."""
    cross = config.cross_encoder
    if config.vision is None and cross is None:
        return 0
    given, least = asked.steps.compilation.get("encoder_tokens"), tokens_of_one(config)
    if given is None and cross is not None:
        given = min(asked.schedule.max_num_seqs or USUAL_SOURCES, USUAL_SOURCES) * cross.positions
    elif given is None:
        given = min(max_model_len, max(USUAL_TOKENS, asked.schedule.max_num_batched_tokens or 0))
    if type(given) is not int or given < least:
        raise ConfigError(
            f"compilation_config['encoder_tokens']={given!r}: expected an integer of at least "
            f"{least}."
        )
    return given


def takes_images(asked: MediaSettings, config: ModelConfig) -> bool:
    """Whether prompts may have images: the model takes them, and limits allow some."""
    limits = asked.limit_mm_per_prompt
    given = limits if isinstance(limits, Mapping) else {}
    vision = config.vision
    return vision is not None and any(given.get(kind, 1) != 0 for kind in kinds_of(vision))


def tokens_of_one(config: ModelConfig) -> int:
    """Minimum rows of the encoder's output array: one image of fixed size, one audio, or the
    longest text."""
    vision, cross = config.vision, config.cross_encoder
    if cross is not None:
        return cross.positions
    assert vision is not None, "a model with an encoder"
    return max((vision.image_size // vision.patch_size // vision.merger.side) ** 2, 1)


def patch_sizes(asked: StepSettings, config: ModelConfig, tokens: int) -> tuple[int, ...]:
    """Compiled encoder sizes: in patches, up to all of the output array, or in tokens, up to the
    longest text."""
    vision, text = config.vision, config.source_encoder
    if config.speech is not None:
        return (config.speech.positions,)  # all audio is padded to one length
    if text is not None:
        what = f"{text.positions} or more, the tokens of the longest text"
        return encoder_ladder(asked, 1, text.positions, SMALLEST_TEXT, what)
    if vision is None:
        return ()
    # The largest run fills the output array; class tokens are extra.
    each = vision.merger.patches
    most = tokens * each
    if vision.class_vector:
        most += tokens // tokens_of_one(config) * each
    what = f"{most} or more, the patches of encoder_tokens={tokens}"
    return encoder_ladder(asked, each, most, SMALLEST_RUN, what)


def encoder_ladder(
    asked: StepSettings, each: int, most: int, smallest: int, what: str
) -> tuple[int, ...]:
    """Compiled encoder sizes up to `most`: the user's, or doubling multiples of `each`. `what`
    describes `most` in errors."""
    given = asked.compilation.get("patch_sizes")
    if given is None:
        sizes, size = [], min(smallest, most)
        while size < most:
            sizes.append(size)
            size *= 2
        return tuple(-(-one // each) * each for one in (*sizes, most))
    sizes = list(rungs("patch_sizes", given))
    if not sizes or sizes != sorted(set(sizes)) or sizes[-1] < most or sizes[0] < 1:
        raise ConfigError(
            f"compilation_config['patch_sizes']={given!r}: expected ascending numbers that end at "
            f"{what}."
        )
    if any(size % each for size in sizes):
        raise ConfigError(
            f"compilation_config['patch_sizes']={given!r}: expected multiples of {each}."
        )
    return tuple(sizes)


def refuse_beside_images(
    asked: Groups, config: ModelConfig, schedule: ScheduleConfig, stages: int
) -> None:
    """Raise for settings that cannot be combined with an encoder."""
    if config.vision is None and config.cross_encoder is None:
        return
    cross = "audio" if config.speech is not None else "text for its encoder"
    what = "images" if config.cross_encoder is None else cross
    ahead = config.vision is not None and config.vision.sees_ahead
    apart = asked.media.mm_encoder_tp_mode == "data"
    others = {
        **refused_stages(config, stages),
        "deterministic=True where XLA multiplies": schedule.one_segment and ahead,
        "decode_context_parallel_size": asked.parallel.decode_context_parallel_size > 1 and ahead,
        "cpu_offload_gb and mm_encoder_tp_mode='data'": bool(asked.cache.cpu_offload_gb) and apart,
        **asked.in_use("executor"),
        **(refused_across(asked, config) if config.cross_encoder is not None else {}),
    }
    for name, is_asked in others.items():
        if is_asked:
            raise UnsupportedFeature(
                f"{config.architecture}, which takes {what}, with {name} is not built yet; leave "
                "it out."
            )


def refused_stages(config: ModelConfig, stages: int) -> dict[str, bool]:
    """Features beside an encoder that pipeline stages do not support -> whether each is in use."""
    name, first = f"pipeline_parallel_size={stages}", stage_layout(config, stages).stages[0]
    deep = 0 if config.vision is None else len(config.vision.deep_layers)
    has = sum(layer is not None for layer in first)
    added = f"{name}, whose first stage has {has} of the {deep} layers that images are added to,"
    return {
        name: stages > 1 and config.cross_encoder is not None,
        added: stages > 1 and has < deep,
    }


def refused_across(asked: Groups, config: ModelConfig) -> dict[str, bool]:
    """Features that cross attention does not support -> whether each is in use."""
    drafts = asked.schedule.drafts
    return {
        "speculative_config with a model that drafts": bool(drafts and drafts.model),
        **asked.in_use(
            "enable_lora",
            "enable_prompt_embeds",
            "deterministic",
            "decode_context_parallel_size",
        ),
        "a pooling runner": config.pooling is not None,
    }
