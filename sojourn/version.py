"""The version of Sojourn, and the folder that it is installed in."""

from pathlib import Path

VERSION = "0.1.0"
PACKAGE = Path(__file__).parent
