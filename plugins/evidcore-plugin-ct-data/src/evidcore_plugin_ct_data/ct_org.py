"""Data set `ct-org`: 140 CTs with five organs and, where it is shown, the brain (Rister et al. 2020, TCIA).

What the published files need, and what is done about it:

1. They come from The Cancer Imaging Archive by hand: `volume-0.nii.gz` and `labels-0.nii.gz`, together in one
   folder, or in `volumes/` and `labels/`, as MedVol-R1's programs expect them.
2. Labels are 1 liver, 2 bladder, 3 lungs, 4 kidneys, 5 bone, 6 brain. A scan without one has an empty mask.
3. The publisher's test part are volumes 0 to 20; `validation` is drawn from the others by a hash.
4. Patients are not named: most scans are those of LiTS.

Source:
    Rister et al. 2020, CT-ORG, a new dataset for multiple organ segmentation in computed tomography,
    doi:10.1038/s41597-020-00715-8.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from annotated_types import Ge, Lt

from evidcore.api import Case, DataError, InlineOptions, VolumeRef
from evidcore.case import Split
from evidcore.errors import NotDownloadedError
from evidcore_plugin_ct_data.published import Entry, Folder, PublishedSet, drawn_split

LABELS: Mapping[str, int] = {"liver": 1, "bladder": 2, "lungs": 3, "kidneys": 4, "bone": 5, "brain": 6}
TEST_VOLUMES = 21  # the first of 140
_VOLUME = re.compile(r"volume-(\d+)\.nii(\.gz)?")


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class CtOrg(PublishedSet):
    """CT-ORG: 140 CTs of the trunk or the whole body in HU, with masks of six organs.

    Masks are `liver`, `bladder`, `lungs`, `kidneys`, `bone` and `brain`. `test` are the publisher's 21 scans;
    in the others lungs and bones were outlined by a program.

    Args:
        path: the folder with the volumes and labels, or with `volumes` and `labels`.
        validation_share: share of the publisher's training part in `validation`.
        ids: only these cases (`volume-7`), or a text file with one a line.
    """

    page = "https://www.cancerimagingarchive.net/collection/ct-org/"

    source: Annotated[Folder, InlineOptions]
    validation_share: Annotated[float, Ge(0), Lt(1)] = 0.1

    def _entries(self, split: Split) -> Iterator[Entry]:
        for number, image in self._numbered():
            name = f"volume-{number}"
            drawn = drawn_split(name, validation_share=self.validation_share)
            if split != ("test" if number < TEST_VOLUMES else drawn):
                continue
            folder = "labels/" if image.startswith("volumes/") else ""
            ending = image.partition(name)[2]
            labels = f"{folder}labels-{number}{ending}"
            volume = VolumeRef(path=str(self._files.path(image)), intensity="hu")
            case = Case(id=name, patient=None, volumes=(volume,), masks=self._label_map(labels, LABELS))
            yield Entry(case=case, names=(image, labels))

    def _numbered(self) -> list[tuple[int, str]]:
        """Return the number of each volume with its file's name, in the order of numbers."""
        result = [
            (int(part[1]), f"{folder}{path.name}")
            for folder in ("", "volumes/")
            for path in (self._files.folder / folder).glob("volume-*")
            if (part := _VOLUME.fullmatch(path.name))
        ]
        if not result:
            error = DataError if self._files.folder.is_dir() else NotDownloadedError
            why = "holds no files volume-0.nii.gz and so on, nor a folder volumes with them"
            remedy = f"Fetch CT-ORG from {self.page}, or correct path on the dataset."
            raise error(f"{self._files.folder}: {why}. {remedy}")
        return sorted(result)
