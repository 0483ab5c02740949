"""Volumes and masks from files to encoder input: body axes, millimetres, intensity windows, content keys.

It builds on the registry, which knows the installed formats, and on nothing above. Modules of this room
import each other, never the room itself. Imported by contracts and all that looks at voxels.
"""

from evidcore.data.cached_volume import changed_copy as changed_copy
from evidcore.data.cached_volume import volume_cache as volume_cache
from evidcore.data.content import content_hash as content_hash
from evidcore.data.content import content_key as content_key
from evidcore.data.content import file_hash as file_hash
from evidcore.data.files import stem as stem
from evidcore.data.format import Format as Format
from evidcore.data.grid import Array as Array
from evidcore.data.grid import FileGrid as FileGrid
from evidcore.data.grid import Geometry as Geometry
from evidcore.data.grid import Mask as Mask
from evidcore.data.grid import Volume as Volume
from evidcore.data.masks import read_mask as read_mask
from evidcore.data.nifti import save_mask as save_mask
from evidcore.data.nifti import save_volume as save_volume
from evidcore.data.reading import read as read
from evidcore.data.reading import read_geometry as read_geometry
from evidcore.data.stored import Stored as Stored
from evidcore.data.stored import refuse_shape as refuse_shape
