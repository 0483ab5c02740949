"""Write known_packages.toml of the hub package: which package of this repository brings which component.

Run it after a package's entry points changed: `python plugins/known_packages.py`.
"""

import json
import tomllib
from pathlib import Path

PLUGINS = Path(__file__).parent
TABLE = PLUGINS / "evidcore-plugin-hub/src/evidcore_plugin_hub/trust/known_packages.toml"
HEAD = """\
# Packages of this repository that are installed on their own, so that a recipe naming one of their components
# on a machine without them can be answered with the command to type. Written by plugins/known_packages.py.
"""


def table() -> str:
    """Return the table, from the entry points that plugins/*/pyproject.toml declare."""
    sections = [HEAD]
    for file in sorted(PLUGINS.glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        lines = [f"[{project['name']}]"]
        for group, names in project.get("entry-points", {}).items():
            if not group.startswith("evidcore."):
                continue  # a plugin of another program
            lines.append(f"{group.removeprefix('evidcore.')} = {json.dumps(sorted(names))}")
        if len(lines) > 1:  # the testing kit offers no component
            sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
