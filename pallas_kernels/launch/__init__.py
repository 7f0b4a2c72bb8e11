"""Calling Triton kernels from jitted JAX. Importing this needs triton, but no GPU.

    outputs = call_kernel(
        kernel, q, cache, layer,                  # arrays: the kernel's first pointers, in order
        out=[jax.ShapeDtypeStruct(shape, dtype)], # new arrays: the pointers after those
        in_place=(1,),                            # which of the arrays the kernel writes
        launch=Launch(grid=(rows, heads), constants={"HEAD_DIM": 128}),
    )

The kernel's parameters are the arrays, then one pointer per `out`, then `tl.constexpr`s by name.
There are no run-time scalars: a value that changes is an array of one element (a layer's index). An
array in `in_place` is passed once, and its new value comes back after the `out`s; XLA copies it
first unless it is donated or dead afterwards. New arrays begin with arbitrary contents.

`launch` may be a function of the device's compute capability (90 for 9.0) where sizes depend on the
device; it is called when the program is lowered, with the capability of the device, or of the
device-less topology, that the program is lowered for.

Under TRITON_INTERPRET=1 (set before triton is first imported) the same call runs the same kernel in
Triton's interpreter on the CPU, from jitted code too. New arrays are then filled with NaN, or the
smallest integer, so that tests notice results that were not written.

- `call.py`         the JAX primitive, and what it becomes on each platform
- `loading.py`      loads kernels' modules before any collective runs
- `bridge.py`       compiling for CUDA; everything that depends on the versions of jax and triton
- `probe.py`        tries one small kernel in a subprocess, which some LLVM errors abort
- `interpreter.py`  numpy arrays as pointers for Triton's interpreter

Refused, by a `KernelError` that names the kernel, the shapes and the device: kernels that need
global scratch memory, or more shared memory than the device has.
"""

from __future__ import annotations

from pallas_kernels.cuda_devices import KernelError as KernelError
from pallas_kernels.launch.call import Launch as Launch
from pallas_kernels.launch.call import call_kernel as call_kernel
from pallas_kernels.launch.interpreter import interpreting as interpreting
from pallas_kernels.launch.loading import KernelCall as KernelCall
from pallas_kernels.launch.loading import kernel_calls as kernel_calls
from pallas_kernels.launch.loading import kernel_equations as kernel_equations
from pallas_kernels.launch.loading import load_kernels as load_kernels
from pallas_kernels.launch.loading import loading as loading
