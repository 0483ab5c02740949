"""The build hook: puts NiiVue into the wheel, or says that it is not in it."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent / "src" / "evidcore_plugin_view" / "niivue.py"


class NiivueHook(BuildHookInterface):  # type: ignore[type-arg]
    """Fetches NiiVue before a wheel or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch it; a build without npm or a network goes on without it."""
        spec = importlib.util.spec_from_file_location("niivue", SOURCE)
        assert spec is not None
        assert spec.loader is not None
        niivue = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(niivue)
        try:
            niivue.fetch()
        except niivue.FetchError as error:
            self.app.display_warning(f"{error} This build has no NiiVue: its viewer shows slices alone.")
