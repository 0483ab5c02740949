"""`evid-plugin.json`: what a repository of the Hub says of the plugin in it."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evidcore.errors import PluginError
from evidcore_plugin_hub.plugin.remote import FILE
from evidcore_plugin_hub.plugin.wheel import Wheel

MOST_BYTES = 2**20
_Line = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00-\x1f]*$")]
_Name = Annotated[str, Field(max_length=200, pattern=r"^[\w./ -]+$")]


class Manifest(BaseModel):
    """Schema 1. Nothing in it is a reason to trust it: it is compared with the wheel."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: Literal[1] = Field(1, alias="schema")
    name: _Line
    version: _Line
    components: Annotated[dict[_Name, _Line], Field(min_length=1, max_length=200)]  # "kind/name" -> target
    capabilities: dict[_Name, _Line]  # what it may reach -> what shows it
    wheel: _Line  # the path of the wheel
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of the wheel
    requires: tuple[_Line, ...]  # as requirements files write them, with --hash where not of evidcore
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]  # of its source

    def to_bytes(self) -> bytes:
        """Return the file: equal manifests give equal bytes."""
        table = self.model_dump(by_alias=True, mode="json")
        return (json.dumps(table, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_manifest(content: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        PluginError: if it is none, with its first three faults.
    """
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, item['loc'])) or 'the file'}: {item['msg']}" for item in error.errors()[:3]
        ]
        raise PluginError(f"{where}: {FILE} is no manifest of schema 1 ({'; '.join(faults)}).") from error


def manifest_of(wheel: Wheel, **beside: Any) -> Manifest:
    """Return the manifest of a wheel; `beside` are the fields that no wheel tells."""
    return Manifest(
        name=wheel.package, version=wheel.version, components=dict(wheel.components),
        capabilities=dict(wheel.capabilities), wheel=f"dist/{wheel.file}", sha256=wheel.sha256, **beside,
    )  # fmt: skip


def differences(manifest: Manifest, wheel: Wheel) -> list[str]:
    """Return where a manifest does not say what the wheel holds."""
    right, given = manifest_of(wheel, requires=manifest.requires, commit=manifest.commit), dict(manifest)
    result = [f"{key} of {FILE} is not the wheel's" for key in given if given[key] != getattr(right, key)]
    pinned = sorted(line.partition(" --hash")[0].replace(" ", "") for line in manifest.requires)
    if pinned != sorted(line.replace(" ", "") for line in wheel.requires):
        result.append(f"requires of {FILE} is not the wheel's")
    return result
