"""Workers as Ray actors, one a host. The only place that imports Ray.

Must not know models or steps.
"""
