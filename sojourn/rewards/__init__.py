"""Rewards: judgements of groups. One file each."""
