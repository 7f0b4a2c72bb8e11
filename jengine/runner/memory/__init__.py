"""Device and host memory: JAX's pool, and the size of the KV cache.

Memory is sized once, for the same programs every time. JAX is started with a memory pool for
`gpu_memory_utilization` of the device (`runner/memory/memory_pool.py`); where it is up already, the
engine takes what the pool has and says which variable to set. The first cache size comes from free
memory and an estimate of scratch memory, so the slowest program is compiled once. Block counts are
rounded and recorded beside the compile cache (`runner/disk/size_record.py`), because every program
depends on them: a start that finds a little more or less free memory compiles nothing.
"""
