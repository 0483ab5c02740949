"""The rules by which English reports are read, and the 18 findings of CT-RATE that they know."""

import tomllib
from pathlib import Path
from typing import Any

RULES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("english_rules.toml").read_text("utf-8"))
CT_RATE_FINDINGS = tuple(RULES["findings"])  # in lower case, in the column order of its label files
