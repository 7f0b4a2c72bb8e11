"""Comparison of this engine's numbers with torch's: who is further from the truth, and where.

A reference is made by another process (`torch_reference.py`) and kept as a bundle; the engine runs
the same tokens; numpy measures, `verdict` judges, `report` shows.
"""
