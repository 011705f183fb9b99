"""The fast CPU way of log-softmax, beam top-k and filtered draws."""
