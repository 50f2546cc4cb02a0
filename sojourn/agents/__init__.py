"""Scaffolds: how a seat turns observations into prompts. One file each."""
