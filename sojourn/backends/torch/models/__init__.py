"""Models of the torch backend: how each kind of weights is found and loaded."""
