"""Rewards score the trajectories of a group. One file each."""
