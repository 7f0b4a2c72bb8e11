"""GPU check: correctness and speed of the kernels on this GPU, and of whole models.

    python -m jengine.bench.gpu --out DIR

Each stage is a separate process and writes DIR/<stage>.json line by line, so that measurements
survive any interruption. DIR/gpu.json, gpu.txt and gpu.html are of all stages. `--dry-run` runs on
a CPU with tiny sizes; its figures mean nothing.
"""
