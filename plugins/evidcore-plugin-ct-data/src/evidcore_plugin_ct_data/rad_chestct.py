"""Data set `rad-chestct`: 3,630 chest CTs with 84 abnormalities at 52 locations (Zenodo record 6406114).

What the published files need, and what is done about it:

1. A scan is the array `ct` of an `.npz` file, HU clipped to ±1000, 0.8 mm in every direction, slices first.
   The publisher's program stacks them from the highest one down, so the axes run to inferior, posterior,
   left.
2. The label tables have a column for each of 84 abnormalities at each of 52 locations, `nodule*lung`. An
   abnormality is present if it is anywhere.
3. The 18 labels of CT-RATE come from rad_chestct.toml. "Calcification" sets both calcification labels,
   which therefore are always equal; nothing sets the mosaic pattern.
4. Patients are named by the metadata table alone.
"""

import dataclasses
import functools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

from evidcore.api import Case, DataError, InlineOptions, VolumeRef
from evidcore.case import Split
from evidcore.errors import did_you_mean
from evidcore_plugin_ct_data.ct_rate import finding
from evidcore_plugin_ct_data.published import Entry, Folder, PublishedSet
from evidcore_plugin_ct_data.tables import flag, read_rows

METADATA = "CT_Scan_Metadata_Complete_35747.csv"
TABLES: Mapping[Split, str] = {
    "train": "imgtrain_Abnormality_and_Location_Labels.csv",
    "validation": "imgvalid_Abnormality_and_Location_Labels.csv",
    "test": "imgtest_Abnormality_and_Location_Labels.csv",
}
SPACING_MM = (0.8, 0.8, 0.8)
AXES = "IPL"  # the first slice is the highest one
FROM_ABNORMALITIES: Mapping[str, list[str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class RadChestCt(PublishedSet):
    """RAD-ChestCT: chest CT without reports, with the 18 labels of CT-RATE made from its own 84.

    The splits are the published ones. Zenodo is not the Hub: the files must be in a folder.

    Args:
        path: the folder with the tables.
        volumes: the folder with the `.npz` files, relative to `path`.
        mosaic: what is said of the mosaic attenuation pattern, for which the set has no label. "absent"
            is what the 18-label table says that others have compared with.
        ids: only these patients or scans (`trn24737`), or a text file with one a line.
    """

    findings = CT_RATE_FINDINGS
    page = "https://zenodo.org/records/6406114"

    source: Annotated[Folder, InlineOptions]
    volumes: str = "."
    mosaic: Literal["unknown", "absent"] = "unknown"

    def _tables(self) -> list[str]:
        return [*TABLES.values(), METADATA]

    def _entries(self, split: Split) -> Iterator[Entry]:
        table = self._files.table(TABLES[split])
        columns: dict[str, list[str]] | None = None
        for line, row in read_rows(table, ["NoteAcc_DEID"]):
            columns = columns if columns is not None else _columns(list(row), table)
            scan = row["NoteAcc_DEID"].strip().removesuffix(".npz")
            where = f"{table}: line {line}, scan {scan!r}"
            patient = self._patients.get(scan)
            if patient is None:
                why = f"{self._files.path(METADATA)} names no patient for it (column MRN_DEID)"
                raise DataError(f"{where}: {why}, so splits could share one. Fetch that table again.")
            file = (Path(self.volumes) / f"{scan}.npz").as_posix()
            path = str(self._files.path(file))
            volume = VolumeRef(path=path, intensity="hu", key="ct", axes=AXES, spacing_mm_zyx=SPACING_MM)
            found = tuple(
                finding(name, any(flag(row[cell], f"{where}, column {cell!r}") for cell in columns[name]))
                for name in CT_RATE_FINDINGS
                if columns[name] or self.mosaic == "absent"
            )
            yield Entry(case=Case(id=scan, patient=patient, volumes=(volume,), findings=found), names=(file,))

    @functools.cached_property
    def _patients(self) -> Mapping[str, str]:
        """Whose each scan is."""
        rows = read_rows(self._files.table(METADATA), ["NoteAcc_DEID", "MRN_DEID"])
        whose = {row["NoteAcc_DEID"].strip(): row["MRN_DEID"].strip() for _, row in rows}
        return {scan: patient for scan, patient in whose.items() if patient}


def _columns(held: list[str], table: Path) -> dict[str, list[str]]:
    """Return the columns that set each finding: every location of its abnormalities."""
    at: dict[str, list[str]] = {}
    for column in held:
        abnormality, star, _ = column.partition("*")
        if star:
            at.setdefault(abnormality, []).append(column)
    for sources in FROM_ABNORMALITIES.values():
        for abnormality in sources:
            if abnormality not in at:
                why = f"has no column of abnormality {abnormality!r}, written '{abnormality}*<location>'"
                raise DataError(f"{table}: {why}.{did_you_mean(abnormality, at)} Fetch the table again.")
    return {
        name: [column for abnormality in sources for column in at[abnormality]]
        for name, sources in FROM_ABNORMALITIES.items()
    }
