"""The trainer of the torch backend: forward and backward passes over trees of tokens, and the optimizer."""
