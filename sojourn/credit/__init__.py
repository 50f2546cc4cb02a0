"""Estimators: from scores to the advantage of every sampled token. One file each; pure numpy."""
