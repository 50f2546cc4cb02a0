"""Seeds that follow from what they are for."""

from __future__ import annotations

import hashlib


def seed_of(*parts: object) -> int:
    """Returns a seed of 63 bits that depends on all parts and on nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
