"""Answers of the settling test: gold reports with slices that show what they say, something else, nothing."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidcore_plugin_reports.agreement import states

from evidcore.api import Crop, Rollout, VisualPart
from evidcore.case import Evidence
from evidcore_plugin_emrl.matched_slices import NOTHING, MatchedSlices, shown_findings
from evidcore_plugin_emrl.report_evidence import shown_slices

CONDITIONS: Mapping[str, str] = {
    "right": "the gold report with its slice",
    "contradicting": "another patient's slice, as high, with as large a lesion, of other findings",
    "empty": "the nearest slice of the patient that shows no finding",
    "blank": "the right slice as air",
    "noise": "the right slice, its voxels permuted",
    "no image": "the question without a picture",
    "swapped": "the right slice; one finding of the report is another, which the case has not",
    "invented": "the right slice; the report has one finding more, which the case has not",
}
RETOLD, OMITTED = "retold", "omitted"  # the gold report in plain sentences, whole and without what is swapped
CANDIDATES = 8  # slices of other patients, of which those that share an index with another are passed over


def conditions(
    rollout: Rollout, matched: MatchedSlices, vocabulary: Sequence[str], cache_folder: Path
) -> dict[str, Rollout]:
    """Return what a gold answer becomes under each condition, without those that it does not allow.

    One that cites no slice that was shown gives none. False findings are drawn from `vocabulary`.
    """
    case, evidence = rollout.prompt.case, rollout.answer.evidence
    shown = shown_slices(rollout.prompt)
    if evidence is None:
        return {}
    cited = dict.fromkeys(evidence.slices.values() if evidence.slice is None else [evidence.slice])
    if not cited or not all(z in shown for z in cited):
        return {}
    gold = frozenset(case.present())
    other: dict[int, Crop] = {}
    empty: dict[int, Crop] = {}
    free = [z for z, crop in shown.items() if not shown_findings(case, crop, cache_folder)]
    for z in cited:
        for crop in matched(case, shown[z], z, CANDIDATES, without=gold):
            if crop.box_zyx and crop.box_zyx[0] not in {_index(item) for item in other.values()}:
                other[z] = crop
                break
        if free:
            empty[z] = shown[min(free, key=lambda item: (abs(item - z), item))]
    own = {z: shown[z] for z in cited}
    result = {"right": _showing(rollout, own, "right")}
    for name, crops in {"contradicting": other, "empty": empty}.items():
        if len(crops) == len(cited):
            result[name] = _showing(rollout, crops, name)
    blank = {z: dataclasses.replace(crop, blank=True) for z, crop in own.items()}
    noise = {z: dataclasses.replace(crop, change="scrambled") for z, crop in own.items()}
    result |= {
        "blank": _showing(rollout, blank, "blank"),
        "noise": _showing(rollout, noise, "noise"),
        "no image": _showing(rollout, own, "no image"),
    }
    known = states(case.findings)
    absent = [name for name in vocabulary if known.get(name, "absent") == "absent"]
    if absent:
        lost, false = _drawn(sorted(gold), case.id), _drawn(absent, case.id)
        rest = gold - {lost}
        reports = {RETOLD: gold, OMITTED: rest, "swapped": rest | {false}, "invented": gold | {false}}
        for name, affirmed in reports.items():  # cites slices for what the report affirms
            right, instead = result["right"], {lost: false} if name == "swapped" else {}
            evidence = right.answer.evidence
            assert evidence is not None
            if evidence.slice is None:
                slices = {instead.get(which, which): z for which, z in evidence.slices.items()}
                evidence = Evidence(slices={which: z for which, z in slices.items() if which in affirmed})
            text = " ".join(f"There is a {item}." for item in sorted(affirmed)) or NOTHING
            result[name] = dataclasses.replace(
                right,
                prompt=dataclasses.replace(right.prompt, id=f"{right.prompt.id}/{name}"),
                answer=dataclasses.replace(right.answer, report=text, evidence=evidence),
            )
    return result


def _index(crop: Crop) -> int:
    assert crop.box_zyx is not None
    return crop.box_zyx[0]


def _showing(rollout: Rollout, crops: Mapping[int, Crop], name: str) -> Rollout:
    """Return an answer that cites other crops in place of its slices, and was shown these alone."""
    prompt, evidence = rollout.prompt, rollout.answer.evidence
    assert evidence is not None
    if evidence.slice is None:
        moved = Evidence(slices={which: _index(crops[z]) for which, z in evidence.slices.items()})
    else:
        moved = Evidence(slice=_index(crops[evidence.slice]))
    parts = tuple(VisualPart(crop=crop) for crop in dict.fromkeys(crops.values()))
    return dataclasses.replace(
        rollout,
        prompt=dataclasses.replace(prompt, id=f"{prompt.id}/{name}", parts=parts),
        answer=dataclasses.replace(rollout.answer, evidence=moved),
    )


def _drawn(names: Sequence[str], key: str) -> str:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return names[int.from_bytes(digest, "big") % len(names)]
