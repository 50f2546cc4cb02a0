"""Off-policy evaluation: how well weights would do, from the recorded episodes of others."""
