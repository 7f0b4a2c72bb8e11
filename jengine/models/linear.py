"""Linear: every weight matmul. Embedding: table lookup.

In: activations. Out: float32 activations. Storage and matmul are up to the weight scheme
(`quantization/`): which tensors a checkpoint holds (declared), which arrays a step takes
(prepared), and the conversion between them. Checkpoints, trainers, `save` and `update_params` see
declared parameters; `runner/step/leaves.py` prepares each at load and restores them, without a copy
where both are the same array. `Linear` is given the norm before it and the residual after it, for
backends to fuse; with a tap or second norm in between, the unfused form runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.layers.norm import DescribedNorm
from jengine.models.parameter import Axes, normal, parameter, zeros
from jengine.quantization.expert_adapters import ExpertAdapters
from jengine.quantization.scheme import Around, Specs, Stored, Tensors, WeightScheme, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

Norm = Callable[[Array], Array]


@dataclass(frozen=True)
class Factory:
    """Common arguments of all modules of a model. Without `rngs`, parameters are only declared."""

    config: ModelConfig
    dtype: Any
    rngs: nnx.Rngs | None
    scheme: WeightScheme = UNQUANTIZED


class Weighted(nnx.Module):
    """A module with one weight: the scheme's declared tensors or, in a step's model, its prepared
    arrays."""

    def __init__(self, scheme: WeightScheme, shape: WeightShape, factory: Factory):
        self.scheme = scheme
        self.shape = shape
        self.dtype = jnp.dtype(factory.dtype)
        self.is_prepared = False
        self.init = normal(factory.config.initializer_range)
        self._declare(self.declared_specs(), factory.rngs)

    def declared_specs(self) -> Specs:
        return self.scheme.declared(self.shape, self.dtype, self.init)

    def prepared_specs(self) -> Specs:
        return self.scheme.prepared(self.shape, self.dtype)

    def become_declared(self, scheme: WeightScheme) -> None:
        """Switch the scheme, and declare its checkpoint tensors."""
        self._replace_tensors(scheme)
        self._declare(self.declared_specs(), None)

    def become_prepared(self, scheme: WeightScheme) -> None:
        """Switch the scheme, and declare its step arrays in place of checkpoint tensors."""
        self._replace_tensors(scheme)
        self.is_prepared = True
        self._declare(self.prepared_specs(), None)

    def _replace_tensors(self, scheme: WeightScheme) -> None:
        self.scheme = scheme
        for name in self.tensor_names:
            delattr(self, name)

    def _declare(self, specs: Specs, rngs: nnx.Rngs | None) -> None:
        self.tensor_names = tuple(specs)
        for name, spec in specs.items():
            setattr(self, name, parameter(rngs, spec.shape, spec.axes, spec.dtype, spec.init))

    def _step_tensors(self) -> Tensors:
        tensors = {name: getattr(self, name)[...] for name in self.tensor_names}
        # In training, weights stay declared and are prepared at each use.
        return tensors if self.is_prepared else self.scheme.prepare(self.shape, tensors)


class Linear(Weighted):
    """x @ weight + bias, float32 unless `inner`. LoRA is applied here."""

    def __init__(
        self,
        factory: Factory,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        axes: Axes,
        *,
        bias: bool = False,
        groups: int | None = None,
        gated: bool = False,
        inner: bool = False,
        x_axes: Axes | None = None,
    ):
        shape = WeightShape(inputs, outputs, axes, groups, gated=gated, inner=inner, x_axes=x_axes)
        super().__init__(factory.scheme, shape, factory)
        # Set while a step with adapters is traced: (x, base) -> base + LoRA update of x.
        self.adapters: Callable[[Array, Array | None], Array] | None = None
        # The same for grouped weights: matrices by slot, and each token's slot.
        self.group_adapters: ExpertAdapters | None = None
        self.adapter_slots: Array | None = None
        self.has_bias = bias
        if bias:
            own = axes[len(axes) - len(outputs) :]
            if groups is not None:
                outputs, own = (groups, *outputs), (axes[0], *own)
            self.bias = zeros(factory.rngs, outputs, own, self.dtype)

    def __call__(
        self,
        x: Float[Array, "*tokens inputs"],
        *,
        norm: Norm | None = None,
        activation: str | None = None,
        residual: Float[Array, "..."] | None = None,
        live: Int[Array, "*tokens"] | None = None,
    ) -> Float[Array, "..."]:
        """residual + activation(norm(x) @ weight + bias), passed as one call for fusion.

        A gated weight returns activation(gate) * up. Rows where `live` is -1 may be skipped.
        """
        described = None
        if isinstance(norm, DescribedNorm):
            described = norm.described()
        elif norm is not None:
            x = norm(x)
        bias = self.bias[...] if self.has_bias else None
        around = Around(described, bias, activation, residual, live)
        if self.adapters is not None:
            x, around = self._with_adapters(self.adapters, x, around)
        return self.scheme.apply(self.shape, x, self._step_tensors(), around)

    def _with_adapters(
        self, adapters: Callable[[Array, Array | None], Array], x: Array, around: Around
    ) -> tuple[Array, Around]:
        """Add LoRA to the residual or, before an activation, as an addend of the matmul."""
        if around.norm is not None:
            x, around = self.scheme.normalize(around.norm, x), around._replace(norm=None)
        if around.activation is not None:
            return x, around._replace(addend=adapters(x, None))
        return x, around._replace(residual=adapters(x, around.residual))

    def stored(self) -> Stored:
        """The weight as scheme functions of several weights take it."""
        bias = self.bias[...] if self.has_bias else None
        return Stored(self.shape, self._step_tensors(), bias, self.group_adapters)


class Embedding(Weighted):
    """A table [rows, width]; as a tied head, its transpose is a matmul weight."""

    def __init__(
        self,
        factory: Factory,
        rows: int,
        axes: Axes,
        *,
        is_head: bool = False,
        width: int | None = None,
    ):
        hidden = factory.config.hidden_size if width is None else width
        self.is_head = is_head
        shape = WeightShape((hidden,), (rows,), axes, outputs_first=True)
        super().__init__(UNQUANTIZED, shape, factory)
        # Set while a step with adapters is traced: (tokens, rows) -> rows + LoRA update.
        self.adapters: Callable[[Array, Array], Array] | None = None

    def __call__(self, indices: Int[Array, "*tokens"]) -> Float32[Array, "*tokens hidden"]:
        """Look up rows of tokens or positions, LoRA included."""
        found = self.base_rows(indices)
        return found if self.adapters is None else self.adapters(indices, found)

    def base_rows(self, indices: Int[Array, "*tokens"]) -> Float32[Array, "*tokens hidden"]:
        """Look up rows without LoRA: adapters apply to the tokens the model itself runs, not to
        draft heads."""
        return self.scheme.lookup(self.shape, indices, self._step_tensors())

    def as_head(
        self, x: Float[Array, "*tokens hidden"], *, live: Int[Array, "*tokens"] | None = None
    ) -> Float32[Array, "*tokens rows"]:
        """x @ table.T; rows where `live` is -1 may be skipped."""
        around = Around(positions=live)
        return self.scheme.apply(self.shape, x, self._step_tensors(), around)
