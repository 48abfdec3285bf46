"""The version that letters and the command line name."""

from typing import Final

VERSION: Final = "0.1.0"
