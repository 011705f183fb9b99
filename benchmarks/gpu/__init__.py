"""The parts of gpu_check: what is measured where there is a GPU, and how it is told."""
