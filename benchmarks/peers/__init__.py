"""What decodes the workloads of benchmarks.throughput and benchmarks.latency: ours and others, each in a
process of its own.

A peer is a class `Peer(folder, dtype, threads)` with `run(work, tokens) -> lengths`, in a module of this
package that imports nothing of forkdecode (but for ours) and the peer's own package only when it is built:
it may run in an environment that has no forkdecode. `lengths` are of the generated sequences in tokens, all
samples of a prompt or its best beam, which are detokenised too; that they are exactly what was asked for is
checked by benchmarks.peers.serve. `stream(work, tokens, arrivals)` decodes one greedy request and says when
it was sent and when each token came (see Arrivals), by the way that the peer has for who reads along. All
raise NotImplementedError with the reason, in a few words, for what the peer cannot do. Further arguments of
the class are numbers that a run may choose, and have the usual value by default.
"""
