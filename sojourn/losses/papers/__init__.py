"""Losses of single papers, which few use: the same contract as those of `sojourn.losses`, one file each."""
