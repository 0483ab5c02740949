"""How good can a segmenter's masks be? Known objects, prompted by an oracle and by boxes that are off.

A policy that names a slice and boxes is paid for what the segmenter makes of them. The Dice from the
oracle's boxes is the *oracle ceiling*: no answer in boxes is expected to earn more with this segmenter. What
boxes lose that are off by a known share is the slope that a reward can follow. It is the mean over the four
ways in which a box can be off by that share, for one way may lose half as much as another; `dice_spread` is
the highest Dice of the four minus the lowest. Objects of one patient are alike, so intervals are drawn over
patients.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evidcore.api import Case, DataError, Segmenter, mean_interval, paired_interval, read_mask
from evidcore.contracts import SegmenterSession
from evidcore.contracts.evaluating import Interval
from evidcore.data import volume_cache
from evidcore.data.masks import dice
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore_plugin_segmenters.audit.drift import Values, body_of, drift, shape_of
from evidcore_plugin_segmenters.audit.oracle import ORACLE_BOX, oracle_boxes, reachable, ways_to_ask
from evidcore_plugin_segmenters.regions import parts

Request = Segmenter.MaskRequest
TRUTH = "truth"
PERFECT = "perfect propagation"
SPREAD = "dice_spread"  # highest minus lowest, over the ways in which a box is off by one share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One object, asked for in one way; `segmenter` may be the truth itself."""

    segmenter: str
    prompt: str
    case: str
    patient: str  # the case where no patient is known
    mask: str
    values: Values


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmenterAudit:
    """What the segmenters gave for the objects of some cases."""

    segmenters: tuple[str, ...]
    prompts: tuple[str, ...]
    records: tuple[Record, ...]
    cases: int
    without_masks: int  # cases that were passed over
    empty_masks: int
    patients_known: bool

    def interval(self, segmenter: str, prompt: str, metric: str) -> Interval | None:
        """Return the mean over objects, None where none has a value."""
        some = self._of(segmenter, prompt, metric)
        if not some:
            return None
        values = [value for value, _ in some.values()]
        return mean_interval(values, [patient for _, patient in some.values()])

    def difference(self, metric: str, first: tuple[str, str], second: tuple[str, str]) -> Interval | None:
        """Return the mean of second minus first, each a segmenter and a prompt, over the objects of both."""
        item, other = self._of(*first, metric), self._of(*second, metric)
        both = [key for key in item if key in other]
        if not both:
            return None
        return paired_interval(
            [other[key][0] for key in both], [item[key][0] for key in both], [item[key][1] for key in both]
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return every figure with its interval, then what separates segmenters and prompts."""
        result = []
        pairs = dict.fromkeys((record.segmenter, record.prompt) for record in self.records)
        metrics = dict.fromkeys(metric for record in self.records for metric in record.values)
        for segmenter, prompt in pairs:
            for metric in metrics:
                interval = self.interval(segmenter, prompt, metric)
                if interval is not None:
                    result.append(_row(segmenter, prompt, metric, interval))
        for name in self.segmenters:
            for prompt in self.prompts:
                if prompt.startswith("box moved"):
                    lost = self.difference("dice", (name, prompt), (name, ORACLE_BOX))
                    result += _rows_of(name, f"{ORACLE_BOX} minus {prompt}", lost)
        for name in self.segmenters[1:]:
            for prompt in self.prompts:
                gained = self.difference("dice", (self.segmenters[0], prompt), (name, prompt))
                result += _rows_of(f"{name} minus {self.segmenters[0]}", prompt, gained)
        return result

    def _of(self, segmenter: str, prompt: str, metric: str) -> dict[tuple[str, str], tuple[float, str]]:
        return {
            (record.case, record.mask): (value, record.patient)
            for record in self.records
            if (record.segmenter, record.prompt) == (segmenter, prompt)
            and (value := record.values.get(metric)) is not None
        }


def audit_segmenters(
    segmenters: Mapping[str, Segmenter],
    cases: Sequence[Case],
    *,
    jitters: Sequence[float] = (0.1, 0.25, 0.5),
    masks: Sequence[str] = (),
    done: Callable[[int, int], None] = lambda count, total: None,
) -> SegmenterAudit:
    """Ask every segmenter for every mask of the cases, from oracle prompts and from boxes that are off.

    A segmenter is asked with the prompts that it takes; with text, by the mask's name in the data set.
    Boxes are moved by the shares `jitters` of their height and width, in all four ways. Cases without masks,
    or without those that `masks` names, are counted and passed over. `done` is told how many cases are done.

    Raises:
        DataError: if a file cannot be used, or no mask shows anything; names file and case.
        ContractError: if a segmenter fails; names its package, the case and the mask.
    """
    records: list[Record] = []
    without, empty, unknown = 0, 0, 0
    for count, case in enumerate(cases, start=1):
        names = [name for name in case.masks if not masks or name in masks]
        without += not names or not case.volumes
        unknown += case.patient is None
        if names and case.volumes:
            try:
                looked = _look(segmenters, case, names, jitters)
            except DataError as cause:
                if case.id in str(cause):
                    raise
                raise DataError(f"{cause} (case {case.id!r})") from cause
            records += looked
            empty += len(names) - len({record.mask for record in looked})
        done(count, len(cases))
    if not records:
        wanted = f" called {', '.join(masks)}" if masks else ""
        raise DataError(
            f"none of the {len(cases)} cases has a mask{wanted} that shows anything: {without} have none, "
            f"{empty} masks are empty. Name another split (--split), other masks (--mask), or a data set "
            f"with masks."
        )
    prompts = tuple(dict.fromkeys(record.prompt for record in records if record.segmenter in segmenters))
    return SegmenterAudit(
        segmenters=tuple(segmenters), prompts=prompts, records=tuple(records), cases=len(cases),
        without_masks=without, empty_masks=empty, patients_known=not unknown,
    )  # fmt: skip


def _look(
    segmenters: Mapping[str, Segmenter], case: Case, names: Sequence[str], jitters: Sequence[float]
) -> list[Record]:
    """Return the records of one case; a mask that shows nothing has none."""
    volume = volume_cache.read(case.volumes[0])
    body = body_of(volume)
    sessions: dict[str, SegmenterSession] = {}
    for name, segmenter in segmenters.items():
        with blame(offer_of(segmenter), f"opening case {case.id!r}"):
            sessions[name] = segmenter.session(case.volumes[0])
    result: list[Record] = []
    for mask in names:
        truth = read_mask(case.masks[mask], like=volume)
        if not truth.any():
            continue
        asked = ways_to_ask(truth, mask, jitters)
        record = functools.partial(Record, case=case.id, patient=case.patient or case.id, mask=mask)
        looks: Values = {**shape_of(truth, [truth], body), "splits": None}
        result.append(record(segmenter=TRUTH, prompt="", values=looks))
        perfect: Values = {"dice": dice(reachable(truth, oracle_boxes(truth)), truth)}
        result.append(record(segmenter=PERFECT, prompt=ORACLE_BOX, values=perfect))
        for name, session in sessions.items():
            with blame(offer_of(segmenters[name]), f"segmenting {mask!r} of case {case.id!r}"):
                for way in asked:
                    if not isinstance(way.tries[0][0], session.takes):
                        continue
                    tried = []
                    for prompts in way.tries:  # one after the other: an object of many parts has many masks
                        objects = session.masks([Request(prompts=(prompt,)) for prompt in prompts])
                        found = np.logical_or.reduce(objects)
                        compared = drift(found, truth, way.key, volume.spacing_mm_zyx[1:])
                        masks = (getattr(item, "mask", None) for item in prompts)
                        seen = [1 if mask is None else len(parts(mask)) for mask in masks]
                        tried.append({**compared, **shape_of(found, objects, body, seen)})
                    result.append(record(segmenter=name, prompt=way.name, values=_mean_of(tried)))
    return result


def _mean_of(tried: Sequence[Values]) -> Values:
    """Return the mean of each figure over the tries that have it; of several, how far Dice lies apart too."""
    known = {
        metric: [value for values in tried if (value := values[metric]) is not None] for metric in tried[0]
    }
    means: Values = {metric: float(np.mean(values)) if values else None for metric, values in known.items()}
    return means if len(tried) < 2 else means | {SPREAD: max(known["dice"]) - min(known["dice"])}


def _rows_of(segmenter: str, prompt: str, interval: Interval | None) -> list[dict[str, Any]]:
    return [] if interval is None else [_row(segmenter, prompt, "dice_difference", interval)]


def _row(segmenter: str, prompt: str, metric: str, interval: Interval) -> dict[str, Any]:
    name, _, distance = metric.partition("/")
    return {
        "segmenter": segmenter,
        "prompt": prompt,
        "metric": name,
        "distance_slices": distance or None,
        "value": interval.value,
        "low": interval.low,
        "high": interval.high,
        "objects": interval.values,
        "patients": interval.patients,
        "note": interval.note,
    }
