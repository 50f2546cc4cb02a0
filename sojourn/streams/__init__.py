"""Streams are per-token inputs of estimators and losses, such as entropies or process rewards. One file each."""
