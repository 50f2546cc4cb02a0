"""Small modules in which bugs are planted. Their docstrings say what is right."""
