"""Compiles a small kernel for a device, as kernels of steps are: the process ends if LLVM ends it.

python -m pallas_kernels.launch.probe 120
"""

from __future__ import annotations

import sys

from pallas_kernels.launch.bridge import compile_kernel, copy_one, use_jax_triton


def main() -> None:
    """Compile it, by hand and by jax-triton where that is used."""
    capability = int(sys.argv[1])
    compile_kernel(copy_one, ("*i32", "*i32"), (), 1, 1, capability)
    use_jax_triton(capability)


if __name__ == "__main__":
    main()
