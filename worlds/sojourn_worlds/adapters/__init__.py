"""Environments of other ecosystems as worlds: one file for each ecosystem, and what they share.

`spaces` turns observations of Gymnasium's spaces into text and parses actions; `toolbox` does the same for tools that
are declared by JSON Schemas; `guard` runs a foreign program that ends with us; `child` and `bridge` talk to one in an
interpreter of its own. Nothing of an ecosystem is imported before an episode of it is made.
"""
