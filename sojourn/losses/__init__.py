"""Losses compute a per-token loss, never a mean, from a forward pass and a batch. One file each; torch."""
