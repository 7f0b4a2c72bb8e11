"""Plans run by workers elsewhere: one connection between a driver and the first of them.

Must not know who starts the workers.
"""
