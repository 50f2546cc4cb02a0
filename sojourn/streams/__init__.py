"""Streams: side information per token or per turn that estimators and losses may ask for. One file each."""
