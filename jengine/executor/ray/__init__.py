"""Workers as Ray actors, one per host. The only place that imports Ray.

Must not know models or steps.
"""
