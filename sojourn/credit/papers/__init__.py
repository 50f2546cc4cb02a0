"""Estimators of single papers, which few use: the same contract as those of `sojourn.credit`, one file each."""
