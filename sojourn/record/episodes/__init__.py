"""The store of recorded episodes: a full record per step, and an index of rows to query."""
