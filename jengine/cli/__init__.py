"""The command line, one file per command.

In: command-line arguments. Out: calls of the Python API and text on a terminal. A command's file
has `add_flags` and `run`; `main` lists the commands. Help must not load jax, numpy or transformers.
"""
