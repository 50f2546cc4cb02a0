"""Environments of other ecosystems as worlds: one file each, and what they share.

`spaces` says observations and reads actions of Gymnasium's spaces; `toolbox` does the same for tools that are declared
by JSON Schemas; `guard` runs a foreign program that ends with us; `child` and `bridge` talk to one in an interpreter of
its own. Nothing of an ecosystem is imported before a play of it is made.
"""
