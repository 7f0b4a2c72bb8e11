"""Weight schemes: how a weight is stored, which arrays a step takes, and how it multiplies.

**Checkpoints** of all formats are decoded to one form. config.json tells which modules are
quantized and how (`models/reading/quantization_config.py`). compressed-tensors, GPTQ, AWQ, BitNet,
FP8 and MXFP4 are decoded while reading into the same declared tensors: values, scales per input
group and output, zeros (`weights/quantized_tensors.py`, `quantization/quantized.py`). A scale per
tensor or block is repeated per output, so that modules with different scales fuse into one matmul.
Loading, sharding and updates then work as for plain parameters. `kv_b_proj` of latent attention is
used absorbed (transposed) as well, so it is dequantized while reading. `save` writes
compressed-tensors, except for gpt-oss, whose experts are one tensor.

**At load**: with `quantization="int8"` and the like, weights are declared unquantized, and
quantized one at a time as they are prepared (`quantization/on_load.py`). 4-bit scales and zeros are
chosen for the least squared error; zeros are multiples of 1/8 step, stored in files as int8.

**GGUF**: a file takes the place of a folder (`weights/gguf`). Its header is the config
(`architectures.py` is the table), a family's `Names` map its tensors, its vocabulary makes a
tokenizer (`text/vocabulary`). Matrices keep the codes of their blocks and the scales and minimums
as stored; experts and most tables are dequantized.

**Matmuls**: XLA's on every backend, unless one of these applies.

- GPUs from Ada on: FP8 weights with a scale per output and FP8 activations are prepared as
  [outputs, inputs], so that a matmul is one cuBLASLt call (`quantization/gpu_fp8.py`).
- GPUs: Triton kernels for scales per input group, four bits and experts
  (`quantization/gpu_codes.py`, `pallas_kernels/quantized_matmul`) dequantize in registers, where
  XLA would write a dequantized copy in every step. Codes are laid out at load so that a kernel
  unpacks both nibbles of a byte in one thread; the weight is the tensor cores' first operand; with
  few rows the inputs are split among programs. Block-scaled FP8 is multiplied by FP8 activations
  where tensor cores support it.
- CPUs: kernels for int8 and int4 weights (`quantization/cpu_codes.py`) convert codes in registers
  or, for many rows on narrow registers, tile by tile, and scale the sum over an input group before
  it leaves the registers, so weights are never rounded to bfloat16.
"""
