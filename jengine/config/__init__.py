"""The engine's settings, one frozen struct per room, and the model's shape as data.

Built once by `assembly/` from the user's arguments and the checkpoint; each room receives only its
own part. No jax, no Hugging Face names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jengine.config.attention import (
    AlibiConfig,
    AttentionConfig,
    DistanceBiasConfig,
    LatentConfig,
    RopeConfig,
)
from jengine.config.balance import BalanceConfig
from jengine.config.cache import (
    CACHE_CODES,
    WHOLE_BLOCKS,
    CacheConfig,
    CacheGroup,
    CacheKind,
    CacheSpec,
    StateSpec,
    cache_groups,
)
from jengine.config.layers import (
    Activation,
    ExpertsConfig,
    FfnConfig,
    LayerConfig,
    LayerInputsConfig,
    MixerConfig,
    MlpConfig,
    RoutingConfig,
    SingleMixer,
)
from jengine.config.model import PLACES, HeadTransformConfig, ModelConfig, NormKind
from jengine.config.pooling import (
    SEQUENCE_TASKS,
    TOKEN_TASKS,
    HeadLayer,
    PoolerConfig,
    PoolingConfig,
    PoolingTask,
    SequencePooling,
    TokenPooling,
)
from jengine.config.recurrent import (
    RECURRENT,
    DeltaConfig,
    Gate,
    Mamba2Config,
    MambaConfig,
    RecurrentConfig,
    ShortConvConfig,
)
from jengine.config.schedule import (
    FREE_TOKENS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGPROB_IDS,
    MODEL_METHODS,
    ScheduleConfig,
    SpeculativeConfig,
    decode_rows,
)
from jengine.config.side_by_side import SharedBlockConfig, SideBySideConfig
from jengine.config.speech import SpeechConfig
from jengine.config.text_encoder import TextEncoderConfig, TextStackConfig, layers_alike
from jengine.config.vision import MergerConfig, VisionActivation, VisionConfig
from jengine.vllm_names import name_in_room

__all__ = [
    "CACHE_CODES",
    "FREE_TOKENS",
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_TOKENS",
    "MAX_LOGPROB_IDS",
    "MODEL_METHODS",
    "PLACES",
    "RECURRENT",
    "SEQUENCE_TASKS",
    "TOKEN_TASKS",
    "WHOLE_BLOCKS",
    "Activation",
    "AlibiConfig",
    "AttentionConfig",
    "BalanceConfig",
    "CacheConfig",
    "CacheGroup",
    "CacheKind",
    "CacheSpec",
    "DeltaConfig",
    "DistanceBiasConfig",
    "ExpertsConfig",
    "FfnConfig",
    "Gate",
    "HeadLayer",
    "HeadTransformConfig",
    "LatentConfig",
    "LayerConfig",
    "LayerInputsConfig",
    "Mamba2Config",
    "MambaConfig",
    "MergerConfig",
    "MixerConfig",
    "MlpConfig",
    "ModelConfig",
    "NormKind",
    "PoolerConfig",
    "PoolingConfig",
    "PoolingTask",
    "RecurrentConfig",
    "RopeConfig",
    "RoutingConfig",
    "ScheduleConfig",
    "SequencePooling",
    "SharedBlockConfig",
    "ShortConvConfig",
    "SideBySideConfig",
    "SingleMixer",
    "SpeculativeConfig",
    "SpeechConfig",
    "StateSpec",
    "TextEncoderConfig",
    "TextStackConfig",
    "TokenPooling",
    "VisionActivation",
    "VisionConfig",
    "cache_groups",
    "decode_rows",
    "layers_alike",
]

if not TYPE_CHECKING:  # a checker would take every name for a name of this module

    def __getattr__(name: str) -> Any:
        return name_in_room(__name__, name)
