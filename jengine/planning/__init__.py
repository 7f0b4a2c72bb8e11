"""The arithmetic of `jengine plan`: what a model needs on devices that need not be there.

Shapes only: no weight is read and no device is started. Each file answers one question.
"""
