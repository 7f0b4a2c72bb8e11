"""Device and host memory: JAX's pool, and the size of the KV cache.

JAX is started with a memory pool for `gpu_memory_utilization` of the device (`memory_pool.py`); if
it runs already, the engine takes what the pool has and logs which variable to set. The KV cache is
planned from free memory and an estimate of scratch memory, so that the slowest program is compiled
only once. Every program depends on the block counts: they are rounded, and recorded beside the
compile cache (`runner/disk/size_record.py`), so that a start with a little more or less free memory
compiles nothing.
"""
