"""Model families as flax.nnx modules over one shared decoder body."""
