"""Compares the engine's numerical errors with those of torch, tensor by tensor.

The truth is torch in a wider dtype. `torch_reference.py` runs in another process and writes a
bundle; the engine runs the same tokens; numpy measures, `verdict` judges, `report` shows.
"""
