"""What decodes the workloads of benchmarks.throughput: ours and others, each in a process of its own.

A peer is a class `Peer(folder, dtype, threads)` with `run(work, tokens) -> generated tokens`, in a module of
this package that imports nothing of forkdecode (but for ours) and the peer's own package only when it is
built: it may run in an environment that has no forkdecode.
"""
