"""Checks that a model can run here before its weights are downloaded, by config.json or the header
of a GGUF file.

As a program: settings on standard input; for a model that cannot run, exit status 3 and the error
on standard output.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import jax
import msgspec
from flax import nnx

from jengine.assembly.backend import start_backend
from jengine.assembly.located import REFUSED
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.memory_args import CacheSettings
from jengine.config import ModelConfig
from jengine.errors import CapacityError, JengineError
from jengine.executor.choice import OWN_PROCESSES
from jengine.hub.options import Check
from jengine.models import registry
from jengine.models.quantized import as_rounded, with_quantization
from jengine.plugin_loading import load_plugins
from jengine.runner.memory.memory_pool import available_bytes
from jengine.text.vocabulary.made import known_vocabulary
from jengine.weights.abstract import abstract_model, with_dtype
from jengine.weights.folder import is_imported, read_config_file, read_model_config
from jengine.weights.gguf.checkpoint import gguf_tensors
from jengine.weights.gguf.files import open_gguf
from jengine.weights.resolve import is_gguf

GIB, GIGA = 2**30, 1e9


def checked_here(asked: Groups) -> Check:
    """A check that runs in this process, which will own the engine's devices."""
    model, parallel = asked.model, asked.parallel

    def check(found: Path) -> None:
        if is_gguf(found):
            config = read_model_config(found)
            gguf_tensors(found)  # raises for tensors that do not fit the model
            if model.tokenizer is None and not model.skip_tokenizer_init:
                known_vocabulary(open_gguf(found).metadata, str(found))
        elif not (found / "config.json").is_file() or model.model_impl == "generic":
            return  # the generic reader needs the tensors
        else:
            hf = read_config_file(found, model.hf_overrides)
            if is_imported(hf):
                return
            config = registry.model_config(hf)
        config = with_dtype(config, model.dtype)
        if parallel.executor in OWN_PROCESSES and not parallel.nodes.several:
            check_memory(
                asked.cache,
                parallel.devices_per_replica,
                with_quantization(config, model.quantization),
            )

    return check


def check_memory(asked: CacheSettings, devices: int, config: ModelConfig) -> None:
    """Raise CapacityError if the weights exceed the available memory."""
    start_backend(asked.gpu_memory_utilization)
    needed = parameter_bytes(config)
    device = jax.local_devices()[0]
    # CPU devices share one memory.
    count = 1 if device.platform == "cpu" else devices
    offloaded = int(asked.cpu_offload_gb * GIB) * count
    free = available_bytes(device, asked.gpu_memory_utilization) * count
    if needed - offloaded > free:
        narrower = "dtype='bfloat16', " if config.dtype == "float32" else ""
        raise CapacityError(
            f"its weights take {needed / GIGA:.1f} GB as {config.dtype}, and there are "
            f"{free / GIGA:.1f} GB for them on {count} {device.platform} device(s). Nothing of "
            f"them was downloaded. Use a smaller model, {narrower}quantization='int4', or more "
            "devices (tensor_parallel_size); `jengine plan` calculates what fits."
        )


def parameter_bytes(config: ModelConfig) -> int:
    """Total bytes of the parameters."""
    model = abstract_model(config)
    as_rounded(model)
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def main() -> int:
    """Check the folder or file named by the settings."""
    try:
        load_plugins()
        args = EngineArgs.checked("engine", **msgspec.msgpack.decode(sys.stdin.buffer.read()))
        checked_here(args.groups)(Path(args.model))
    except JengineError as error:
        sys.stdout.buffer.write(msgspec.msgpack.encode((type(error).__name__, str(error))))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
