"""The node list of a step from its block tables, compiled: see forkdecode_kernels.forest."""
