"""The shared memory of clients: regions that they register by name, and the tensors of requests that lie in them.

The regions belong to the engine, whichever front end was asked to register them. They are mapped on request only: a
client that shrinks the object under a map ends the server with SIGBUS. Otherwise they are read and written through
their descriptors, which fails with an error instead.

    Regions            the regions by their names, and the requests that use them
    └── Region         a name, a size, and the memory behind it
        └── RegionMemory       the protocol: read, write, view
            ├── SystemMemory   an object of POSIX shared memory
            └── CudaMemory     an allocation on a GPU, through the handles of CUDA IPC (CudaDriver)
    Attachment         the regions that one request uses
    BufferPool         memory into which inputs are copied (core/buffer_pool.py)

Source: docs/spec/shared-memory.md.
"""
