"""Settings of the model: its files, tokenizer, task and numeric types. No jax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from jengine.assembly.settings.pooling_settings import checked_overrides, checked_pooler_config
from jengine.assembly.settings.setting import ALL, CHECK, CORE, HIDDEN, RANK, WORKER, Setting
from jengine.assembly.settings.values import one_of, template_text
from jengine.config import CACHE_CODES
from jengine.connectors.weight_settings import WeightSettings
from jengine.hub.options import HubOptions


@dataclass
class ModelArgs:
    """The model, its files, and the types of weights and KV cache."""

    # A folder, "demo", a Hugging Face repository org/name (org/name:Q4_K_M for one of several GGUF
    # files), or a flax.nnx module with its parameters. An existing folder takes precedence.
    model: Annotated[Any, Setting(kept_from=ALL)]
    _: KW_ONLY
    revision: Annotated[str | None, Setting(
        "of a repository of the Hugging Face Hub: branch, tag or commit [main]", commands="pull"
    )] = None  # fmt: skip
    tokenizer_revision: Annotated[str | None, Setting("that of the tokenizer [the model's]")] = None
    download_dir: Annotated[str | Path | None, Setting(
        "folder of the download cache [Hugging Face's own, see HF_HOME]", commands="pull"
    )] = None  # fmt: skip
    # None or True: HF_TOKEN, or the token of `hf auth login`; False: no token.
    hf_token: Annotated[str | Literal[True, False] | None, Setting(
        "token for gated and private repositories [HF_TOKEN, which ps does not show]",
        commands="pull", kept_from=CORE | WORKER | CHECK
    )] = field(default=None, repr=False)  # fmt: skip
    ignore_patterns: Annotated[Sequence[str] | None, Setting(
        "files of a repository that are left out, as patterns with *", commands="pull"
    )] = None  # fmt: skip
    runner: Annotated[Literal["auto", "generate", "pooling"], Setting(
        "what the model is for: generate, pooling, or auto (by its files)"
    )] = "auto"  # fmt: skip
    convert: Annotated[Literal["auto", "none", "embed", "classify"], Setting(
        "make a model that writes one that makes embeddings or classes: embed, classify"
    )] = "auto"  # fmt: skip
    # vLLM's former setting, in place of `runner` and `convert`.
    task: Annotated[str | None, Setting(HIDDEN)] = None
    # A PoolerConfig, or a dict of its fields: how hidden states are pooled.
    pooler_config: Annotated[Any, Setting(
        "JSON with the fields of PoolerConfig, or --pooler-config.KEY VALUE",
        final=checked_pooler_config
    )] = None  # fmt: skip
    hf_overrides: Annotated[Mapping[str, Any] | None, Setting(
        "JSON: entries that replace those of config.json", final=checked_overrides
    )] = None  # fmt: skip
    # Parameters instead of the folder's: a module, an nnx.State or a tree of arrays.
    params: Annotated[Any, Setting(kept_from=ALL)] = None
    tokenizer: Annotated[Any, Setting(
        "folder or org/name of the tokenizer, if it is not the model's",
        commands="compare doctor", kept_from=CORE | WORKER | RANK | CHECK
    )] = None  # fmt: skip
    skip_tokenizer_init: Annotated[bool, Setting(kept_from=WORKER)] = False
    chat_template: Annotated[str | Path | None, Setting(
        "file or text of a chat template, if it is not the tokenizer's",
        kept_from=CORE | WORKER | RANK, final=partial(template_text, "chat_template")
    )] = None  # fmt: skip
    dtype: Annotated[Any, Setting(
        "type of weights and cache: auto, float32, bfloat16, float16",
        commands="compare doctor plan simulate", kept_from=WORKER
    )] = "auto"  # fmt: skip
    # *_with_head: the output head too, to int8. None: as config.json says. For a quantized
    # checkpoint, the name of its format is accepted.
    quantization: Annotated[str | None, Setting(
        "round weights as they are loaded: int8, int4, fp8, int8_with_head, ...",
        short="-q", recorded=True, commands="compare doctor plan simulate"
    )] = None  # fmt: skip
    # int8 and fp8: one byte per value, with a scale per token and head.
    kv_cache_dtype: Annotated[str, Setting(
        "what keys and values are stored as: auto (the model's dtype), int8, fp8",
        recorded=True, commands="compare doctor plan simulate",
        check=partial(one_of, "kv_cache_dtype", choices=tuple(CACHE_CODES))
    )] = "auto"  # fmt: skip

    @property
    def hub(self) -> HubOptions:
        """Options for downloads from the Hugging Face Hub."""
        from jengine.weights.gguf.header import has_header  # numpy: not imported for `--help`

        return HubOptions(
            self.revision, self.download_dir, self.hf_token, tuple(self.ignore_patterns or ()),
            has_header=has_header,
        )  # fmt: skip

    @property
    def cache_codes(self) -> str | None:
        """Code format of the KV cache; None: the model's dtype."""
        return CACHE_CODES[self.kv_cache_dtype]


@dataclass(frozen=True)
class ModelSettings:
    """The model, and how its parameters are loaded."""

    model: Any
    params: Any
    dtype: Any
    quantization: str | None
    load_format: str
    seed: int | None
    weight_settings: WeightSettings | None
    model_impl: str
    hf_overrides: Mapping[str, Any] | None
    runner: str
    convert: str
    pooler_config: Any
    tokenizer: Any
    skip_tokenizer_init: bool
    generation_config: str
    override_generation_config: Mapping[str, Any] | None
