"""The arithmetic of `jengine plan`: memory and speed of a model on devices that need not be here.

From shapes and data sheets only: no weight is read and no device is started.
"""
