"""The compiled C kernels of the torch backend, as functions on tensors."""
