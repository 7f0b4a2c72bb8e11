"""Weight schemes: how a weight is stored, what the step is given, and how it multiplies.

Quantized checkpoints become one form. config.json says which modules are quantized and how
(`models/reading/quantization_config.py`). Whatever a file packs (compressed-tensors, GPTQ, AWQ,
BitNet, FP8, MXFP4) is decoded as it is read into the same declared tensors: values, scales per
group of inputs and output, zeros (`weights/quantized_tensors.py`, `quantization/quantized.py`). The
scale of a whole tensor or of a block is repeated for its outputs, so that modules with different
scales share one matmul. Loading, sharding and updates then work as for plain parameters. With
`quantization="int8"` plain weights are declared and rounded as they are prepared, one at a time
(`quantization/on_load.py`), to four bits by the scales and zeros that change them least
(`on_load.py`); such zeros are eighths of a step, so files hold them as integers of eight bits.
`save` writes compressed-tensors, but for gpt-oss, whose experts are one tensor. `kv_b_proj` of
latent attention is multiplied from both sides, so it is plain in a step and dequantized as it is
read. A GGUF file stands for a folder (`weights/gguf`): its header is the config (`architectures.py`
is the table), its tensors have roles that a family's `Names` names, its vocabulary makes a
tokenizer (`text/vocabulary`), and its matrices stay in the codes of their blocks, with zeros of
float32 where a type has minimums; tables and experts are dequantized. XLA multiplies, on every
backend. On GPUs from Ada on, FP8 weights with a scale for each output and FP8 activations are
prepared as [outputs, inputs], so that a matmul is one call of cuBLASLt (`quantization/gpu_fp8.py`).
Scales of groups of inputs, four bits and experts have Triton kernels there
(`quantization/gpu_codes.py`, `pallas_kernels/quantized_matmul`), which make numbers of codes in
registers, as XLA would write a plain copy of the weight in every step: codes are laid out at load
so that both halves of a byte belong to one product, the weight is the first operand of tensor
cores, and few rows split the inputs among programs. FP8 by blocks meets FP8 activations where
tensor cores multiply them. On a lone CPU kernels multiply where weights are int8 or int4 and
activations are not rounded (`quantization/cpu_codes.py`): they convert integers in registers, or,
for many rows on narrow registers, a tile at a time, and scale sums over a group of inputs before
they leave registers, so those weights are never rounded to bfloat16.
"""
