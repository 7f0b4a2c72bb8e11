"""Structured output: the keys of `structured_outputs_config`. No jax.

In: the settings, by vLLM's names. Out: defaults of all requests with structured output, or a
ConfigError. Must not know grammars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.assembly.settings.dict_settings import checked_keys
from jengine.assembly.settings.values import one_of, switch
from jengine.assembly.settings.vllm_tuning import note_idle
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.structured_outputs import StructuredOutputsDefaults
from jengine.text.chat_parser import check_parser_names

NAME = "structured_outputs_config"
KEYS = {
    "backend": "any of vLLM's, which mean the same: llguidance follows all grammars",
    "disable_any_whitespace": "JSON without whitespace between its tokens, in all answers",
    "disable_additional_properties": "objects have no properties but those that schemas name",
    "reasoning_parser": "how the model marks its reasoning, after which grammars begin",
    "enable_in_reasoning": "grammars begin with the first token, also of a model that reasons",
}
OTHER_BACKENDS = ("xgrammar", "outlines", "lm-format-enforcer")
SWITCHES = ("disable_any_whitespace", "disable_additional_properties", "enable_in_reasoning")


def checked_reasoning_parser(parser: str | None, config: Any) -> str | None:
    """Validate structured_outputs_config; return the reasoning parser, given there or
    separately."""
    _check(config)
    inside = (config or {}).get("reasoning_parser") or None
    if None not in (parser or None, inside) and parser != inside:
        raise ConfigError(
            f"reasoning_parser={parser!r}, and {NAME} has another one, {inside!r}. Give one of "
            "them."
        )
    check_parser_names(parser or inside, None)
    return parser or inside


def structured_outputs_defaults(
    parser: str | None, config: Mapping[str, Any] | None
) -> StructuredOutputsDefaults:
    """Defaults of structured output, from checked settings."""
    given = config or {}
    return StructuredOutputsDefaults(
        disable_any_whitespace=given.get("disable_any_whitespace", False),
        disable_additional_properties=given.get("disable_additional_properties", False),
        reasoning_parser=None if given.get("enable_in_reasoning") else parser,
    )


def _check(config: Any) -> None:
    if isinstance(config, Mapping) and config.get("reasoning_parser_plugin"):
        raise UnsupportedFeature(
            f"{NAME}['reasoning_parser_plugin']: parsers are built in. Give the name of one as "
            "reasoning_parser."
        )
    checked_keys(NAME, config, {**KEYS, "reasoning_parser_plugin": "refused unless empty"})
    for key, value in (config or {}).items():
        if key in SWITCHES:
            switch(f"{NAME}[{key!r}]", value)
    _check_backend((config or {}).get("backend", "auto"))


def _check_backend(backend: Any) -> None:
    one_of(f"{NAME}['backend']", backend, ("auto", "guidance", *OTHER_BACKENDS))
    if backend in OTHER_BACKENDS:
        note_idle("jengine", f"{NAME}['backend']", backend, "llguidance follows all grammars")
