"""Volumes and masks from files to encoder input: body axes, millimetres, intensity windows, content keys.

It builds on the registry, which knows the installed formats, and on nothing above. Modules of this room
import each other, never the room itself. Imported by contracts and all that looks at voxels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evidcore.data.arrays import stated_affine as stated_affine
from evidcore.data.cached_volume import CachedVolume as CachedVolume
from evidcore.data.cached_volume import VolumeCache as VolumeCache
from evidcore.data.cached_volume import volume_cache as volume_cache
from evidcore.data.content import content_hash as content_hash
from evidcore.data.content import content_key as content_key
from evidcore.data.content import file_hash as file_hash
from evidcore.data.encoder_input import EncoderInput as EncoderInput
from evidcore.data.encoder_input import Grid as Grid
from evidcore.data.files import file_state as file_state
from evidcore.data.files import stem as stem
from evidcore.data.format import Format as Format
from evidcore.data.grid import Array as Array
from evidcore.data.grid import FileGrid as FileGrid
from evidcore.data.grid import Geometry as Geometry
from evidcore.data.grid import Mask as Mask
from evidcore.data.grid import Source as Source
from evidcore.data.grid import Triple as Triple
from evidcore.data.grid import Volume as Volume
from evidcore.data.masks import label_mask as label_mask
from evidcore.data.masks import place_into as place_into
from evidcore.data.masks import place_on as place_on
from evidcore.data.masks import read_mask as read_mask
from evidcore.data.masks import resample_mask as resample_mask
from evidcore.data.nifti import save_mask as save_mask
from evidcore.data.nifti import save_volume as save_volume
from evidcore.data.placement import turn_to_body as turn_to_body
from evidcore.data.reading import read as read
from evidcore.data.reading import read_error as read_error
from evidcore.data.reading import read_geometry as read_geometry
from evidcore.data.stored import AGAIN as AGAIN
from evidcore.data.stored import Stored as Stored
from evidcore.data.stored import refuse_flat as refuse_flat
from evidcore.data.stored import refuse_not_finite as refuse_not_finite
from evidcore.data.stored import refuse_shape as refuse_shape
from evidcore.data.stored import refuse_type as refuse_type
from evidcore.data.stored import unreadable as unreadable
from evidcore.data.stored import written as written

if TYPE_CHECKING:
    from evidcore.data.preparation import prepare as prepare


def __getattr__(name: str) -> Any:
    """Import `prepare` when it is first asked for: it alone needs torch, which takes two seconds."""
    if name == "prepare":
        from evidcore.data.preparation import prepare

        return prepare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
