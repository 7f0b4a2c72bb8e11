"""Tries a small kernel, in a subprocess that some compiler and driver errors abort.

python -m pallas_kernels.launch.probe 120    compile for a compute capability; needs no GPU
python -m pallas_kernels.launch.probe        run on each GPU, printing a line of JSON for each
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp

from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.launch.bridge import compile_kernel, copy_one, use_jax_triton


def compile_for(capability: int) -> None:
    """Compile the probe kernel for a compute capability, also through jax-triton if installed."""
    compile_kernel(copy_one, ("*i32", "*i32"), (), 1, 1, capability)
    use_jax_triton(capability)


def run_on(device: jax.Device) -> str | None:
    """Why the kernel does not run on a GPU, or None."""
    number = jax.device_put(jnp.array([7], jnp.int32), device)
    launch = Launch((1,), {}, num_warps=1, num_stages=1)
    try:
        (copied,) = call_kernel(copy_one, number, out=[number], launch=launch)
        return None if int(copied[0]) == 7 else f"copied 7 as {int(copied[0])}"
    except Exception as error:  # noqa: BLE001 - whatever it is, a line says it
        return f"{type(error).__name__}: {error}"


def main() -> None:
    if len(sys.argv) > 1:
        compile_for(int(sys.argv[1]))
        return
    for device in jax.local_devices():
        if capability := float(getattr(device, "compute_capability", None) or 0):
            told = {"id": device.id, "kind": device.device_kind, "problem": run_on(device)}
            print(json.dumps({**told, "capability": round(10 * capability)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
