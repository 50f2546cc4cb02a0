"""The models of a run, as its config describes them."""
