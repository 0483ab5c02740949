"""What can be asked of the runs that are looked at: JSON values, PNG of slices, NIfTI of scans."""

import functools
import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any, get_args

from evidcore_plugin_pages.tables import unit_of_row

from evidcore.api import DataError
from evidcore.data.masks import dice
from evidcore.errors import RunError
from evidcore_plugin_view import niivue, overlay, public_lines
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.opened_scan import Scan
from evidcore_plugin_view.overlay import Mask, Overlay, Plane
from evidcore_plugin_view.question_scene import Reference, Scene, compose

Query = Mapping[str, str]
Answer = dict[str, Any] | list[Any] | bytes
_MOST_SCANS = 3  # that are kept in memory, with their masks
_OVERLAY_KEYS = ("id", "name", "role", "source", "asked", "legend")


class Routes:
    """Answers by name about runs "a" and "b"; every value of a query is text."""

    def __init__(self, runs: Mapping[str, OpenedRun]) -> None:
        self.runs = runs
        self._read = functools.lru_cache(maxsize=_MOST_SCANS)(Scan)
        self._lock = threading.Lock()  # of three planes that are asked for at once, the first reads

    def answer(self, name: str, query: Query) -> Answer | None:
        """Return what is asked for; None where nothing has that name.

        Raises:
            EvidError: if a run, a line or a scan is not there or cannot be read.
            ValueError: if a number is none, or lies outside a scan.
            KeyError: if the query lacks a value; names it.
        """
        if name == "runs":
            for run in self.runs.values():
                run.read_again()
            return {key: run.described() for key, run in self.runs.items()}
        if name == "scene":
            return self._scene(self._composed(query))
        if name in _OF_RUN:
            return _OF_RUN[name](self._run(query["run"]), query)
        if name in _OF_LINE:
            reference = Reference.parse(query["line"])
            return _OF_LINE[name](self._run(reference.run), reference)
        if name in _OF_SCAN:
            scene = self._composed(query)
            return _OF_SCAN[name](self, scene, self._scan(scene), query)
        return None

    def _run(self, name: str) -> OpenedRun:
        if name not in self.runs:
            raise RunError(f"no run is called {name!r}. There are: {', '.join(self.runs)}.")
        return self.runs[name]

    def _composed(self, query: Query) -> Scene:
        references = [Reference.parse(query[side]) for side in ("a", "b") if query.get(side)]
        for item in references:
            self._run(item.run)
        self.runs[references[0].run].look_up(references[0].kind, references[0].stage, references[0].number)
        return compose(self.runs, references)

    def _scan(self, scene: Scene) -> Scan:
        if scene.volume is None:
            raise RunError(" ".join(scene.notes))
        with self._lock:
            return self._read(scene.volume)

    def _scene(self, scene: Scene) -> Answer:
        fields: dict[str, Any] = {"notes": list(scene.notes), "waiting": scene.waiting, "overlays": []}
        if scene.volume is None:
            return fields
        scan = self._scan(scene)
        overlays = [
            {
                **{name: getattr(item, name) for name in _OVERLAY_KEYS},
                "solid": bool(item.mask or item.boxes or item.follow or item.legend),
                "follows": item.follow is not None,
            }
            for item in scene.overlays
        ]
        return fields | {
            "windows": scan.windows(),
            "planes": {plane: scan.plane(plane) for plane in get_args(Plane)},
            "scan": scan.name,
            "sides": scene.sides,
            "niivue": niivue.ASSET.is_file(),
            "overlays": overlays,
        }

    def mask_of(self, one: Overlay, scan: Scan) -> Mask | None:
        """Return the mask of an overlay, None for one that has none.

        Raises:
            RunError: if a segmenter has not made it, or cannot.
        """
        if one.follow is None:
            return None if one.mask is None else scan.mask(one.mask)
        followed = self._run(one.follow.run).followed.get(one.follow)
        if followed is None or followed.fault:
            still = f"{one.id}: its boxes are still followed. Ask again."
            raise RunError(followed.fault if followed else still)
        return followed.mask()

    def slice(self, scene: Scene, scan: Scan, query: Query) -> Answer:
        """Return a slice in a window, as PNG."""
        return scan.png(_plane(query), int(query["index"]), float(query["low"]), float(query["high"]))

    def voxels(self, scene: Scene, scan: Scan, query: Query) -> Answer:
        """Return the voxels of an overlay, on the grid of `volume.nii`; those of a map run from 0 to 255."""
        item = scene.overlay(query["overlay"])
        drawn = overlay.voxels(item, self.mask_of(item, scan), scan.volume.shape_zyx)
        return scan.nifti(drawn if item.strengths else drawn > 0)

    def shapes(self, scene: Scene, scan: Scan, query: Query) -> Answer:
        """Return the shapes of some overlays on one slice, by id."""
        plane, index = _plane(query), int(query["index"])
        shapes = {}
        for name in query["overlays"].split("|") if query["overlays"] else ():
            item = scene.overlay(name)
            drawn = overlay.voxels(item, self.mask_of(item, scan), scan.volume.shape_zyx)
            if (shape := overlay.shape(item, drawn, plane, index)) is not None:
                shapes[name] = shape
        return shapes

    def extent(self, scene: Scene, scan: Scan, query: Query) -> Answer:
        """Return the slices on which an overlay is seen, by plane, and on which most of it is."""
        item = scene.overlay(query["overlay"])
        mask = self.mask_of(item, scan)
        drawn = overlay.voxels(item, mask, scan.volume.shape_zyx)
        seen = {plane: overlay.extent(item, drawn, plane) for plane in get_args(Plane)}
        return {
            **{plane: slices for plane, (slices, _) in seen.items()},
            "fullest": {plane: fullest for plane, (_, fullest) in seen.items()},
            "window": None if mask is None else scan.window_around(mask),
        }

    def followed(self, scene: Scene, scan: Scan, query: Query) -> Answer:
        """Have the boxes of an answer followed; return what became of them, and how like the truth it is."""
        item = scene.overlay(query["overlay"])
        if item.follow is None:
            raise RunError(f"{item.id}: is made of no boxes that a segmenter follows.")
        followed = self._run(item.follow.run).followed.get(item.follow)
        result = {"waiting": followed is None, "fault": "", "legend": "", "dsc": None}
        mask = None if followed is None else followed.mask()
        if followed is None or mask is None:
            return result | {"fault": followed.fault if followed else ""}
        dsc, compared = _compared(mask, scan, scene)
        return result | {"legend": f"Made of the boxes by {followed.by}. {compared}".strip(), "dsc": dsc}


def _compared(mask: Mask, scan: Scan, scene: Scene) -> tuple[float | None, str]:
    """Return the DSC of a mask with what is asked about, None where that is not known, and a sentence."""
    about = " + ".join(scene.target)
    try:
        truth = [scan.mask(ref) for ref in scene.target.values()]
    except DataError as cause:
        return None, f"No DSC: {cause}"
    if not truth:
        return None, "" if mask.any() else "It holds no voxel."
    together = functools.reduce(operator.or_, truth)
    if not mask.any() and not together.any():
        return None, f"Neither it nor {about} holds a voxel."
    dsc = dice(mask, together)
    return dsc, f"DSC {dsc:.3f} with {about}."


def _plane(query: Query) -> Plane:
    plane = query["plane"]
    if plane not in get_args(Plane):
        raise ValueError(f"a plane is one of {', '.join(get_args(Plane))}, got {plane!r}")
    return plane  # type: ignore[return-value]  # it was just compared


def _search(run: OpenedRun, query: Query) -> Answer:
    return run.index(query["kind"], query["stage"]).containing(query["words"], public_lines.searched)


def _audits(run: OpenedRun, query: Query) -> Answer:
    results = [(str(result.get("stage", "")), result) for result in run.head.results]
    return [{"stage": stage, **item} for stage, result in results for item in public_lines.staircases(result)]


def _results(run: OpenedRun, query: Query) -> Answer:
    """Return what a table shows of each stage's result."""
    return [
        {
            "stage": result.get("stage"),
            "kind": result.get("kind"),
            "rows": [
                {name: value for name, value in row.items() if value is not None} | {"unit": unit_of_row(row)}
                for row in result.get("rows") or ()
            ],
            "verdict": result.get("verdict") or {},
        }
        for result in run.head.results
    ]


def _line(run: OpenedRun, reference: Reference) -> Answer:
    line = run.line(reference.kind, reference.stage, reference.number)
    run.look_up(reference.kind, reference.stage, reference.number)
    phantom, case = run.is_phantom(line), run.cases.case(line)
    fields = public_lines.public_fields(line, phantom=phantom) | {"phantom": phantom}
    if "reference" in line:
        fields["reference"] = public_lines.public_reference(line["reference"] or {}, phantom=phantom)
    if "rollouts" in line:
        fields["rollouts"] = [public_lines.rollout_json(item) for item in line["rollouts"]]
    else:
        fields |= public_lines.with_turns(line)
    if case is not None:
        fields |= {"report": case.report, "report_withheld": case.report_withheld}
    return fields


def _sentences(run: OpenedRun, reference: Reference) -> Answer:
    """Return what the sentences of a report affirm, and on which slice it is said to be seen."""
    line = run.line(reference.kind, reference.stage, reference.number)
    if reference.rollout is not None:
        known = line.get("reference") or {}
        findings = {name: known.get(name) or () for name in ("present", "absent")}
        line = {**findings, **reference.rollout_of(line)}
    return public_lines.cited_sentences(line, run.reader.sentences)


_OF_RUN: Mapping[str, Callable[[OpenedRun, Query], Answer]] = {
    "rows": lambda run, query: list(run.index(query["kind"], query["stage"]).rows()),
    "search": _search,
    "results": _results,
    "audits": _audits,
}
_OF_LINE: Mapping[str, Callable[[OpenedRun, Reference], Answer]] = {"line": _line, "sentences": _sentences}
_OF_SCAN: Mapping[str, Callable[[Routes, Scene, Scan, Query], Answer]] = {
    "slice.png": Routes.slice,
    "volume.nii": lambda routes, scene, scan, query: scan.nifti(),
    "mask.nii": Routes.voxels,
    "shapes": Routes.shapes,
    "extent": Routes.extent,
    "value": lambda routes, scene, scan, query: scan.value(*(int(query[axis]) for axis in "zyx")),
    "followed": Routes.followed,
}
