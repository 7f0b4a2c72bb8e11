"""LoRA adapters: files of PEFT to low-rank parts of our weights.

An adapter is added, never merged. Each weight that can be adapted has two more arrays, with
matrices of every slot (`lora/stacks.py`); a plan says which slot a row has, and which adapter must
be there. `Linear` adds what the rows' adapters make: it is part of the residual, or, before an
activation, of what the kernel adds to its sums. Rows of one slot run together and read its matrices
once (`pallas_kernels/low_rank`): a kernel of the CPU's, the Triton kernels of experts, or, on a
mesh, XLA with all slots as one matrix. Programs with adapters are variants of their own, so batches
without any run what an engine without adapters runs. The core knows an adapter by the digest of its
content: prefixes of two adapters of one name are never mixed, and a running request keeps the
adapter that it began with. Numbers, names and folders are the front's, which loads an adapter into
the core before it queues the first request for it, so bad files are errors of that call, and drops
one when no open request uses it (`engine/adapters.py`).
"""
