"""Parameters of a running engine: updated by a training loop, and saved as a model folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from jengine.api.interrupt import held_back_interrupts
from jengine.api.sharding_picture import ParamShardings
from jengine.assembly.engine import Engine
from jengine.assembly.settings.values import one_of
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.models.parameter import named_parameters
from jengine.weights.abstract import abstract_model, with_values
from jengine.weights.hf_arrays import given_parameters
from jengine.weights.live import release_moved
from jengine.weights.mapped_trees import Mapped, mapped_parameters, tree_arrays
from jengine.weights.partial_updates import gathered, is_stream
from jengine.weights.save import save_model, saved_config, with_plain_weights
from sharding.jax_settings import engine_context

OnInflight = Literal["finish", "abort", "continue"]


def update_params(
    engine: Engine, params: Any, donate: bool, on_inflight: OnInflight,
    finish_all: Callable[[], None], mapping: Mapped | None = None,
) -> int:  # fmt: skip
    """Run other parameters from the next step on. Returns their version.

    `finish_all` returns when every open request has ended. New requests wait meanwhile.
    """
    one_of("on_inflight", on_inflight, ("finish", "abort", "continue"))
    if donate and is_stream(params):
        what = type(params).__name__
        raise ConfigError(f"donate=True: a {what} frees its arrays itself. Leave donate out.")
    model, declared, places = engine.model, engine.declared, engine.places
    given = gathered(params, mapping)
    with engine_context():
        if mapping is None:
            values = given_parameters(model, declared, given, places)
        else:
            values = mapped_parameters(model, declared, given, mapping, places)
    del given  # frees copies in host memory
    session = engine.session
    with session.closed_to_new():
        if on_inflight == "finish":
            finish_all()
        if on_inflight == "abort":
            for answer in session.open_answers:
                session.abort(answer.request_id)
        began = time.monotonic()
        with held_back_interrupts():  # an interrupt would leave half of the weights new
            version = engine.in_process.update_weights(values)
        session.stats.update_params(time.monotonic() - began)
        if donate:
            copied = engine.order.copied
            in_use = [value for path, value in values.items() if path not in copied]
            release_moved(tree_arrays(params).values(), in_use)
        return version


@engine_context()
def save(
    engine: Engine, path: str | Path, format: Literal["safetensors", "orbax"], overwrite: bool
) -> None:
    """Write the parameters in use as a model folder."""
    if engine.processes > 1:
        raise UnsupportedFeature(
            "save: writing parameters that are spread over several processes is not built yet. "
            "Save them from the program that owns them."
        )
    engine.check_leaves()
    engine.in_process.sleeping.check_awake()
    config = saved_config(engine.model, format)
    loaded = engine.loaded
    quantization = engine.model.quantization
    if quantization is None or (quantization.on_load and config.quantization is None):
        model = with_values(engine.declared, loaded.parameters())
    else:
        values = with_plain_weights(engine.declared, loaded.stored_parameters())
        model = with_values(abstract_model(config), values)
    save_model(
        model,
        config,
        path,
        format,
        tokenizer=None if engine.tokenizer is None else engine.tokenizer.hf,
        source=engine.folder,
        overwrite=overwrite,
    )


def param_shardings(engine: Engine) -> ParamShardings:
    """The sharding of each parameter."""
    places, leaves = engine.places, dict(named_parameters(engine.declared))
    return ParamShardings(
        {
            path: places.sharding(path, leaf.get_metadata()["axes"], leaf.shape)
            for path, leaf in leaves.items()
        },
        {path: leaf.shape for path, leaf in leaves.items()},
    )
