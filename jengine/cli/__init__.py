"""The command line, one file a command.

In: words a user typed. Out: calls of the Python API and text on a terminal. A command's file offers
`add_flags` and `run`; `main` lists the commands. Help must not load jax, numpy or transformers.
"""
