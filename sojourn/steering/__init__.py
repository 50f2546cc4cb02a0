"""Finds vectors that steer a policy, from what a run recorded."""
