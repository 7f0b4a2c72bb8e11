"""Two-way descriptions of config.json keys: one table both reads and writes a config's fields.

In: fields of a config.json, or a config. Out: the config's arguments; the keys. Must not know
families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from jengine.config import ExpertsConfig, FfnConfig, MlpConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_experts_count


class Key(NamedTuple):
    """A key's name, the method of `Fields` that reads it, and transformers' default."""

    name: str
    method: Callable[..., Any]
    usual: Any
    limits: Mapping[str, Any] = {}
    to_field: Callable[[Any], Any] = lambda value: value
    to_key: Callable[[Any], Any] = lambda value: value


Keys = Mapping[str, Key]  # by field name


def integer(name: str, usual: int | None = None, **limits: int) -> Key:
    return Key(name, Fields.integer, usual, limits)


def flag(name: str, usual: bool, *, true: Any = True, false: Any = False) -> Key:
    """A boolean key for a field with two values."""
    return Key(
        name, Fields.flag, usual, {}, lambda on: true if on else false, lambda value: value == true
    )


def number(name: str, usual: float) -> Key:
    return Key(name, Fields.number, usual)


def factor(name: str, usual: float = 1.0) -> Key:
    """A number above zero."""
    return Key(name, Fields.number, usual, {"above_minimum": True})


def optional_number(name: str, usual: float | None) -> Key:
    return Key(name, Fields.optional_number, usual)


def read_fields(fields: Fields, keys: Keys) -> dict[str, Any]:
    """The fields' values by name."""
    return {
        field: key.to_field(key.method(fields, key.name, key.usual, **key.limits))
        for field, key in keys.items()
    }


def write_fields(config: object, keys: Keys) -> dict[str, object]:
    """Inverse of `read_fields`."""
    return {key.name: key.to_key(getattr(config, field)) for field, key in keys.items()}


class SparseLayers(NamedTuple):
    """How config.json tells which layers have experts. `write` takes a flag per layer."""

    read: Callable[[Fields, int], Iterable[int]]
    write: Callable[[list[bool]], dict[str, object]]


EVERY_LAYER = SparseLayers(lambda _, num_layers: range(num_layers), lambda _: {})


def behind_dense(key: str, default: int) -> SparseLayers:
    """`key` is the number of leading dense layers; all others have experts."""

    def read(fields: Fields, num_layers: int) -> Iterable[int]:
        return range(fields.integer(key, default, minimum=0), num_layers)

    return SparseLayers(read, lambda sparse: {key: [*sparse, True].index(True)})


class Experts(Protocol):
    """A family's experts: reads and writes which layers have them and their sizes."""

    def read_blocks(self, fields: Fields, mlp: MlpConfig, num_layers: int) -> list[FfnConfig]: ...

    def write(self, config: ModelConfig) -> dict[str, object]: ...


class ExpertKeys(NamedTuple):
    """config.json keys of a family's MoE layers, with transformers' defaults."""

    experts: int
    per_token: int
    names: tuple[str, ...]  # keys of the number of experts; the first is written
    keys: Keys = {}  # without a key for it, experts have the MLP's inner size
    routing_keys: Keys = {}
    routing: RoutingConfig = RoutingConfig()
    fixed: Mapping[str, Any] = {}  # constants of the family
    layers: SparseLayers = EVERY_LAYER

    def read(self, fields: Fields, mlp: MlpConfig) -> ExpertsConfig:
        own: dict[str, Any] = {
            "intermediate_size": mlp.intermediate_size,
            "activation": mlp.activation,
            "routing": replace(self.routing, **read_fields(fields, self.routing_keys)),
            **self.fixed,
            **read_fields(fields, self.keys),
        }
        counts = read_experts_count(fields, self.experts, self.per_token, *self.names)
        return ExpertsConfig(*counts, **own)

    def read_blocks(self, fields: Fields, mlp: MlpConfig, num_layers: int) -> list[FfnConfig]:
        experts, sparse = self.read(fields, mlp), set(self.layers.read(fields, num_layers))
        return [experts if layer in sparse else mlp for layer in range(num_layers)]

    def write(self, config: ModelConfig) -> dict[str, object]:
        blocks = [layer.ffn for layer in config.layers]
        experts = next((one for one in blocks if isinstance(one, ExpertsConfig)), None)
        counts = {} if experts is None else self.write_one(experts)
        return {**counts, **self.layers.write([isinstance(one, ExpertsConfig) for one in blocks])}

    def write_one(self, experts: ExpertsConfig) -> dict[str, object]:
        """Inverse of `read`."""
        return {
            self.names[0]: experts.num_experts,
            "num_experts_per_tok": experts.experts_per_token,
            **write_fields(experts, self.keys),
            **write_fields(experts.routing, self.routing_keys),
        }
