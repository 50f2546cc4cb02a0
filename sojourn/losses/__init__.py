"""Losses: a per-token loss from a forward pass and a batch, never a mean. One file each; torch."""
