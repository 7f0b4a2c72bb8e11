"""The GPU check: are the kernels right on this GPU, how near are they to what it can do, and what
do whole models reach.

    python -m jengine.bench.gpu --out DIR

Each stage is a process of its own and writes DIR/<stage>.json line by line, so that whatever stops
it, what was measured stays. `--dry-run` does the same on a CPU with tiny sizes and means nothing.
"""
