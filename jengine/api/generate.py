"""`jengine.generate(...)`: one-line use in notebooks. The engine is cached for the next call.

Accepts option names of transformers' `generate` besides vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jengine.api.arguments import Params
from jengine.api.llm import LLM
from jengine.api.tapping import Interventions
from jengine.assembly.settings.args import NAMES as ENGINE
from jengine.errors import RequestError, UnsupportedFeature, unknown_argument
from jengine.outputs import RequestOutput
from jengine.sampling_names import INSTEAD, LATER_FEATURES
from jengine.sampling_params import SamplingParams

SAMPLING = tuple(item.name for item in fields(SamplingParams))
OF_VLLM = (*LATER_FEATURES, *INSTEAD)
# seed is also an engine setting; here it belongs to the request, as in transformers.
RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "eos_token_id": "stop_token_ids",
    "stop_strings": "stop",
}

# The cached engine and its arguments. Only one, as a second would not fit on an accelerator.
_kept: list[tuple[Any, dict[str, Any], LLM]] = []


def generate(
    model: Any,
    prompts: Any,
    sampling_params: Params = None,
    *,
    use_tqdm: bool | None = None,
    capture: str | Sequence[str] | None = None,
    intervene: Interventions | None = None,
    **options: Any,
) -> list[RequestOutput]:
    """Answer prompts with a model; options are sampling parameters or engine settings by name.

    `capture` and `intervene` as for `LLM.generate`.
    """
    sampling, settings = split_options(options)
    if sampling and sampling_params is not None:
        raise RequestError(
            f"sampling_params and {', '.join(sorted(sampling))} were both given; give one of them."
        )
    llm = engine_for(model, settings)
    if sampling:
        defaults = llm.engine.default_params
        sampling_params = SamplingParams(**{**defaults, **sampling})
    return llm.generate(
        prompts, sampling_params, use_tqdm=use_tqdm, capture=capture, intervene=intervene
    )


def clear() -> None:
    """Shut down the engine that `generate` keeps, and free its memory."""
    while _kept:
        _kept.pop()[2].shutdown()


def engine_for(model: Any, settings: Mapping[str, Any]) -> LLM:
    """Return the cached engine of this model and these settings, or replace it by a new one."""
    for kept_model, kept_settings, llm in _kept:
        if same_model(kept_model, model) and kept_settings == dict(settings):
            return llm
    clear()
    llm = LLM(model, **settings)
    _kept.append((model, dict(settings), llm))
    return llm


def same_model(one: Any, other: Any) -> bool:
    """Whether two models are the same folder or the same live object."""
    if isinstance(one, (str, Path)) and isinstance(other, (str, Path)):
        return str(one) == str(other)
    return one is other


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options by name into sampling parameters and engine settings."""
    sampling: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, value in translated(options).items():
        if name in SAMPLING or name in OF_VLLM:
            sampling[name] = value
        elif name in ENGINE:
            settings[name] = value
        else:
            raise unknown_argument("generate", name, [*SAMPLING, *ENGINE, *RENAMED, "do_sample"])
    return sampling, settings


def translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with transformers' names replaced; both spellings at once are refused."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        for new, meant in rename(name, value).items():
            if new in result or (new != name and new in options):
                raise RequestError(f"{name} and {new} mean the same; give one of them.")
            result[new] = meant
    return result


def rename(name: str, value: Any) -> dict[str, Any]:
    """Translate one option of transformers' `generate` to vLLM's name and value."""
    if name == "do_sample":
        return {} if value else {"temperature": 0.0}
    if name == "num_beams":
        if value != 1:
            raise UnsupportedFeature(
                f"num_beams={value}: transformers ranks beams by the length of the answer alone, "
                "LLM.beam_search by that of prompt and answer, as vLLM does. Use "
                f"LLM(...).beam_search(prompts, BeamSearchParams(beam_width={value}, "
                "max_tokens=...))."
            )
        return {}
    if name == "eos_token_id" and isinstance(value, int):
        value = [value]
    return {RENAMED.get(name, name): value}
