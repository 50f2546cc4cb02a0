"""Backends: the four verbs (forward, forward_backward, optim_step, publish) and a sampler, on some hardware."""
