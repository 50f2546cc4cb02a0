"""The sampler of the torch backend: continuous batching over a prefix cache."""
