"""LoRA adapters: loading of PEFT files, and their low-rank matrices on devices.

Adapters are added, never merged. Each adaptable weight has two stacked arrays with the matrices of
every slot (`lora/stacks.py`); a plan gives each row's slot and the adapter that must be in it.
`Linear` adds the low-rank result to the residual or, before an activation, to the matmul's float32
accumulator. Rows of one slot run together and read its matrices once (`pallas_kernels/low_rank`):
by a CPU kernel, the grouped matmul Triton kernels, or, on a mesh, XLA with all slots as one matrix.
Programs with adapters are separate variants, so batches without any pay nothing. The core
identifies an adapter by its content digest: prefix caches of two adapters with one name never mix,
and a running request keeps its adapter. Integer ids, names and folders exist only in the front
(`engine/loaded_adapters.py`), which loads an adapter into the core before queuing its first
request, so bad files fail that call, and drops it when no open request uses it.
"""
