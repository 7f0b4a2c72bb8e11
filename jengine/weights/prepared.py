"""Two forms of parameters: declared, as checkpoints hold them, and prepared, as a step takes them.

In: a model's declarations and where arrays belong. Out: arrays of one form from those of the other.
Where a weight's scheme takes the declared arrays themselves, they pass through untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
from flax import nnx

from jengine.models.linear import Linear
from jengine.quantization.scheme import Axes, Specs, Tensors, WeightShape

# Where an array belongs, given its path, logical axes and shape.
Shardings = Callable[[str, Axes, tuple[int, ...]], jax.sharding.Sharding]
Arrays = Mapping[str, jax.Array]  # by dotted path


class PreparedForm:
    """A model in the form that a step takes, and the way there and back."""

    def __init__(self, declared: nnx.Module, shardings: Shardings) -> None:
        """`declared` has shapes in place of arrays."""
        self._shardings = shardings
        self._weights = {
            path: linear
            for path, linear in linears(declared).items()
            if not linear.scheme.takes_declared
        }
        self.module = nnx.merge(*nnx.split(declared))
        for path, linear in linears(self.module).items():
            if path in self._weights:
                linear.become_prepared()

    def prepare(self, values: Arrays) -> Arrays:
        """Prepared arrays, from all declared ones."""
        found = dict(values)
        for path, one in self._weights.items():
            tensors = {name: found.pop(f"{path}.{name}") for name in one.declared_specs()}
            made = self._run(path, one.shape, one.scheme.prepare, tensors, one.prepared_specs())
            found.update(made)
        return found

    def restore(self, values: Arrays) -> Arrays:
        """Declared arrays, from all prepared ones."""
        found = dict(values)
        for path, one in self._weights.items():
            tensors = {name: found.pop(f"{path}.{name}") for name in one.prepared_specs()}
            made = self._run(path, one.shape, one.scheme.restore, tensors, one.declared_specs())
            found.update(made)
        return found

    def _run(
        self,
        path: str,
        shape: WeightShape,
        convert: Callable[[WeightShape, Tensors], Tensors],
        tensors: Tensors,
        wanted: Specs,
    ) -> dict[str, jax.Array]:
        where = {
            name: self._shardings(f"{path}.{name}", spec.axes, spec.shape)
            for name, spec in wanted.items()
        }
        made = jax.jit(lambda given: dict(convert(shape, given)), out_shardings=where)(tensors)
        return {f"{path}.{name}": array for name, array in made.items()}


def linears(model: nnx.Module) -> dict[str, Linear]:
    """Dotted path -> Linear, for all in a model."""
    return {
        ".".join(map(str, path)): module
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear)
    }
