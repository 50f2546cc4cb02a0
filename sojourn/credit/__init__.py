"""Estimators compute the advantage of every sampled token from the scores of episodes. One file each; pure numpy."""
