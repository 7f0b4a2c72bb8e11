"""Trains what drafts tokens for the demo model: an EAGLE or EAGLE-3 head, Medusa heads, or a small
sibling; minutes on CPU cores.

In: a kind and an output folder. Out: config.json and model.safetensors there, in the layouts in
which such heads are published, for `speculative_config={"method": ..., "model": FOLDER}`.
Must not know: how a drafter computes.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

from examples.demo_model import tokenizer as demo_tokenizer
from examples.demo_model.batches import Batch, batch_at
from examples.demo_model.drafters import KINDS, Drafter, drafter
from examples.demo_model.trainer import HELD_OUT_BATCHES, Plan, optimizer
from jengine.demo import model_path
from jengine.models.parameter import named_parameters
from jengine.models.tensors.checkpoint import take_tensor
from jengine.weights.abstract import with_values
from jengine.weights.safetensors_file import write_file
from jengine.weights.safetensors_io import load_model

__all__ = ["METHODS", "PLAN", "train", "write"]

# What `speculative_config` calls each kind.
METHODS = {"eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa", "draft": "draft_model"}
PLAN = Plan(
    steps=600, tokens_per_step=1024, learning_rate=2e-3, warmup=50, decay_share=0.5,
    lengths=((0.0, 128),),
)  # fmt: skip
LAST_MIX = 10**9  # a step after which the demo model's text no longer changes
Values = dict[str, jax.Array]


def train(kind: str, plan: Plan) -> tuple[Drafter, Values, list[float]]:
    """The drafter, its parameters, and how often each of its drafts is right on held-out text."""
    teacher = load_model(model_path(), dtype="float32")
    graph, taught = nnx.split(teacher)
    one = drafter(kind, teacher.config)
    tokenizer = demo_tokenizer.load(model_path())
    optimize = optimizer(plan)

    def drafts(values: Values, taught: Any, batch: Batch) -> Any:
        return one.drafts(with_values(one.model, values), nnx.merge(graph, taught), batch)

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(values: Values, state: Any, taught: Any, batch: Batch) -> tuple[Values, Any, Any]:
        def loss(values: Values) -> jax.Array:
            return drafts(values, taught, batch).loss()

        found, gradients = jax.value_and_grad(loss)(values)
        changes, state = optimize.update(gradients, state, values)
        return optax.apply_updates(values, changes), state, found

    values = first_values(one, plan.seed)
    state = optimize.init(values)
    rows, length = plan.shape_at(0)
    mix = Plan(refresher=1).mix_at(LAST_MIX)
    with tqdm(total=plan.steps, unit="step", mininterval=5.0) as bar:
        for step in range(plan.steps):
            batch = batch_at(tokenizer, plan.seed, step, rows, length, mix=mix)
            values, state, loss = update(values, state, taught, batch)
            bar.update()
            if step % 10 == 0:
                bar.set_postfix({"loss": f"{float(loss):.3f}"}, refresh=False)
    measure = jax.jit(lambda values, batch: drafts(values, taught, batch).agreement())
    held_out = [
        measure(values, batch_at(tokenizer, 0, step, rows, length, held_out=True, mix=mix))
        for step in range(HELD_OUT_BATCHES)
    ]
    return one, values, [float(np.mean(place)) for place in zip(*held_out, strict=True)]


def first_values(one: Drafter, seed: int) -> Values:
    """Random parameters."""
    keys = nnx.Rngs(seed)
    return {
        path: declared.get_metadata()["init"](keys.params(), declared.shape, jnp.float32)
        for path, declared in named_parameters(one.model)
    }


def write(one: Drafter, values: Values, folder: Path) -> None:
    """The drafter's folder, its weights rounded to bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    hf = {**one.hf, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(hf, indent=2) + "\n")
    tensors = dict(stored(one, values))
    dtype = np.dtype(ml_dtypes.bfloat16)
    declared = [(name, dtype, array.shape) for name, array in tensors.items()]
    write_file(folder / "model.safetensors", declared, iter(tensors.values()))


def stored(one: Drafter, values: Values) -> Iterator[tuple[str, np.ndarray]]:
    """Its tensors by the names that files give them."""
    for path, pieces in one.pieces.items():
        parameter = np.asarray(values[path]).astype(ml_dtypes.bfloat16)
        for name in dict.fromkeys(piece.name for piece in pieces):
            yield name, take_tensor([(parameter, one) for one in pieces if one.name == name])


def main() -> None:
    """Train a drafter for the demo model."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo_model.train_drafter", description=main.__doc__
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--out", type=Path, required=True, help="folder of the drafter")
    parser.add_argument("--steps", type=int, default=PLAN.steps)
    parser.add_argument("--seed", type=int, default=PLAN.seed)
    given = parser.parse_args()
    plan = replace(PLAN, steps=given.steps, seed=given.seed)
    one, values, right = train(given.kind, plan)
    write(one, values, given.out)
    shares = ", ".join(f"{share:.1%}" for share in right)
    print(f"drafts that are the model's most likely token, by place, on held-out text: {shares}")
    config = {"method": METHODS[given.kind], "model": str(given.out), "num_speculative_tokens": 3}
    print(f'LLM("demo", speculative_config={config})')


if __name__ == "__main__":
    main()
