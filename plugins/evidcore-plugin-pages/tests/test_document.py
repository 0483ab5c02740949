import base64
import hashlib
import json
import re
import tomllib
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidcore_plugin_pages.document import document, write_page
from evidcore_plugin_pages.gallery import Gallery
from evidcore_plugin_pages.record import read_record
from evidcore_testing.data import save_nifti
from evidcore_testing.recipes import recipe_text
from markupsafe import escape

from evidcore.api import Crop, VolumeRef

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


def written(run: Any, **options: Any) -> str:
    return write_page(run.folder, **options).read_text(encoding="utf-8")


def numbers_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(numbers_in, value.values()), set())
    if isinstance(value, list):
        return set().union(*map(numbers_in, value), set())
    return {repr(value)} if isinstance(value, int | float) else set()


@pytest.mark.parametrize("what", TABLE["says"])
def test_the_page_says(what, page):
    text = Elements(page).text
    assert [words for words in TABLE["says"][what] if words not in text] == []
    assert text.count(TABLE["says"]["verdict of the audit"][0]) == 1


def test_page_reaches_for_nothing_outside_itself(page):
    assert not re.search(r"https?://|[\"'(]//|@import|url\(", page)
    for name, attributes in Elements(page).found:
        assert name not in ("link", "iframe", "object", "embed", "base")
        for key in ("src", "href", "xlink:href", "srcset", "action", "poster"):
            value = attributes.get(key)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))


def test_browser_is_told_to_load_nothing_and_to_run_only_this_script(page):
    policy = next(
        a["content"] for name, a in Elements(page).found if a.get("http-equiv") == "Content-Security-Policy"
    )
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_text_of_models_cases_and_rewards_is_never_markup(fake_run):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"
    scripts = Elements(written(fake_run)).found
    for path in (*fake_run.folder.glob("rollouts/*"), *fake_run.folder.glob("answers/*")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line |= {"prompt": evil, "text": evil, "malformed": evil, "choice": evil, "task": evil}
            line["reference"] = {"letter": evil, "finding": evil}
            for item in line.get("rollouts", ()):
                turn = {"text": evil, "actions": [{"tool": evil, "error": evil}], "reply": evil}
                item |= {"text": evil, "malformed": evil, "turns": [turn]}
                item["rewards"] = {evil: {"value": 1.0, "parts": {evil: 1.0}, "reason": evil}}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in fake_run.folder.glob("results/*"):
        result = json.loads(path.read_text())
        for row in result["rows"]:
            row |= {"note": evil, "name": evil}
        path.write_text(json.dumps(result))
    resolved = (fake_run.folder / "resolved.toml").read_text()
    (fake_run.folder / "resolved.toml").write_text(resolved.replace('"med3d_r1"', json.dumps(evil)))
    page = written(fake_run)
    results = Elements(page).found
    count = [name for name, _ in results].count("script")
    assert count <= [name for name, _ in scripts].count("script")
    assert not any("onerror" in attributes for _, attributes in results)
    assert escape(evil) in page


def test_every_number_shown_is_one_that_the_run_wrote_or_a_count_of_its_lines(finished_run, page):
    known: set[str] = set()
    for folder in ("results", "rollouts", "answers"):
        for path in (finished_run.folder / folder).iterdir():
            known |= set().union(*(numbers_in(json.loads(line)) for line in path.read_text().splitlines()))
    answers = (finished_run.folder / "answers" / "07-audit.jsonl").read_text().splitlines()
    asked = {json.loads(line)["prompt_id"] for line in answers}
    time = page[page.index('<section id="time">') : page.index('<section id="record">')]
    shown = re.findall(r'<data value="([^"]*)">([^<]*)</data>', page.replace(time, ""))
    assert len(shown) > 300
    counts = {repr(number) for number in range(len(asked) + 1)}
    for value, text in shown:
        assert value in known | counts
        read = float(text.replace("\N{MINUS SIGN}", "-").replace("\u202f", "").rstrip(" %"))
        assert abs(read - float(value)) < 6e-4 or abs(read - 100 * float(value)) < 0.0501


def test_seconds_are_the_sums_of_the_logged_seconds(finished_run, page):
    lines = [json.loads(line) for line in (finished_run.folder / "metrics.jsonl").read_text().splitlines()]
    generate = sum(line.get("generate_s", 0.0) for line in lines)
    time = page[page.index('<section id="time">') : page.index('<section id="record">')]
    shown = [float(value) for value in re.findall(r'<data value="([^"]*)">', time)]
    assert pytest.approx(generate) in shown
    assert sum(shown) == pytest.approx(sum(line.get("step_s", 0.0) for line in lines))


def test_three_reference_lines_stand_beside_every_accuracy(page):
    rows = [row for row in re.findall(r"<tr.*?</tr>", page) if "accuracy</td>" in row]
    assert len(rows) >= 15
    for row in rows:
        for value in ("0.25", "0.2875", "1.0"):
            assert f'<data value="{value}">' in row


def test_an_audit_is_a_staircase(page):
    text = Elements(page).text
    staircase = [text.index(f"{name} volumes") for name in ("another patient's", "blank", "own")]
    assert staircase == sorted(staircase)


def test_too_few_patients_are_said_where_an_interval_would_stand(fake_run):
    path = fake_run.folder / "results" / "07-audit.json"
    result = json.loads(path.read_text())
    for row in result["rows"]:
        row |= {"low": None, "high": None, "note": "too few patients (5 of at least 20)"}
    path.write_text(json.dumps(result))
    text = Elements(written(fake_run)).text
    assert "No intervals: too few patients (5 of at least 20)." in text


@pytest.mark.slow
def test_a_group_of_forked_answers_shows_its_tree_and_its_turns(fake_run):
    path = fake_run.folder / "rollouts" / "05-grpo.jsonl"
    assert "leaves" not in written(fake_run)
    line = json.loads(path.read_text().splitlines()[0])
    action = {"tool": "crop", "arguments": {"slice": 3}, "error": None}
    turn = {"text": "<think>closer</think>", "actions": [action], "reply": "slice 3, closer:<image>"}
    for place, item in enumerate(line["rollouts"]):
        item |= {"total": float(-place), "turns": [turn] if place == 1 else []}
    line["rollouts"][5]["parent"] = [1, 12]
    path.write_text(json.dumps(line) + "\n")
    page = written(fake_run)
    assert page.count("#6, total \N{MINUS SIGN}5 leaves #2, total \N{MINUS SIGN}1 at token 12") == 1
    assert "Reply of crop: slice 3, closer:&lt;image&gt;" in page
    assert "Tokens from left to right" in page


def test_the_page_is_written_again_and_its_place_printed(evid, bare_run):
    place = str(bare_run.folder / "page" / "index.html")
    assert evid("page", bare_run.folder).stdout.strip() == place
    assert json.loads(evid("page", bare_run.folder, "--json").stdout) == {"page": place}


def test_slices_are_there_without_the_script(page):
    result = Elements(page).found
    pictures = [a for name, a in result if name == "img" and "Axial slice" in str(a.get("alt"))]
    assert pictures
    assert all(str(a["src"]).startswith("data:image/png;base64,") for a in pictures)


def test_masks_of_present_findings_are_outlined(finished_run, page):
    blocks = [
        json.loads(b) for b in re.findall(r'<script type="application/json" id="[^"]*">(.*?)</script>', page)
    ]
    outlined = {name for block in blocks for name in block["outlines"]}
    assert outlined
    assert outlined <= {name for some in finished_run.cases.values() for case in some for name in case.masks}
    assert set(blocks[0]["windows"]) == {"lung", "mediastinum", "bone"}


def test_a_run_that_has_only_started_still_has_a_page(bare_run):
    text = Elements(written(bare_run)).text
    for said in TABLE["started"]:
        assert said in text


@pytest.mark.slow
@pytest.mark.parametrize(("missing", "said"), TABLE["missing"])
def test_a_missing_piece_is_said_to_be_missing(fake_run, missing, said):
    (fake_run.folder / missing).unlink()
    assert said in Elements(written(fake_run)).text


def test_empty_groups_and_files_are_no_obstacle(fake_run):
    path = fake_run.folder / "rollouts" / "05-grpo.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps({**line, "rollouts": []}) + "\n")
    (fake_run.folder / "answers" / "07-audit.jsonl").write_text("")
    fake_run.result("06-evaluate", "evaluate", [])
    assert "This run has no GRPO rollouts." in Elements(written(fake_run)).text


def test_a_missing_volume_is_named_in_place_of_its_slices(fake_run):
    path = fake_run.cases["test"][0].volumes[0].path
    gone = path.replace(".nii", "-gone.nii")
    for file in fake_run.folder.glob("answers/*"):
        file.write_text(file.read_text().replace(path, gone))
    assert gone in Elements(written(fake_run)).text


def test_a_run_has_none_of_its_data_made_anew(fake_run, tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))  # another's, where its volumes are not
    assert "looking at a run makes no data anew" in Elements(written(fake_run)).text
    assert not [*tmp_path.glob("cache/phantoms/*")]


def noise(path: Path, size: tuple[int, int, int], seed: int) -> Crop:
    values = np.random.default_rng(seed).normal(0, 300, size).astype(np.int16)
    return Crop(volume=VolumeRef(path=str(save_nifti(path, values, (3.0, 1.0, 1.0)))))


def test_a_large_noisy_volume_leaves_room_for_others(bare_run, tmp_path):
    uri = noise(tmp_path / "large.nii", (60, 384, 384), 0).uri()  # 26 MB as 8-bit pictures in three windows
    answer = {"prompt_id": "p", "case_id": "c", "task": "report", "text": "x", "images": [uri]}
    bare_run.line("answers/04-evaluate.jsonl", **answer)
    assert 500_000 < write_page(bare_run.folder).stat().st_size < 4_000_000


def test_volumes_stay_within_their_budget_and_those_without_room_are_said_to_be_left_out(tmp_path):
    gallery = Gallery(budget_bytes=1_000_000)
    crops = [noise(tmp_path / f"{seed}.nii", (12, 96, 96), seed) for seed in range(4)]
    shown = [gallery.viewer([crop.uri()], None) for crop in crops]
    assert "Left out to keep this page small." in shown[-1]
    assert "<figure" in shown[0]
    assert len(gallery.blocks()) < 1_010_000


@pytest.fixture
def real_run(bare_run, tmp_path):
    """A run on a folder of scans, whose reports are not ours to show."""
    scans = tmp_path / "scans"
    scans.mkdir()
    uri = noise(scans / "a.nii.gz", (12, 16, 16), 0).uri()
    table = "id,volume,patient,split,report\na,a.nii.gz,p1,test,Secret words of a report.\n"
    (scans / "cases.csv").write_text(table)
    stage = {"kind": "evaluate", "data": [{"dataset": "site", "task": "report", "split": "test"}]}
    site = {"use": "folder", "path": "scans"}
    recipe = recipe_text(stage, recipe_folder=str(tmp_path), dataset={"site": site})
    (bare_run.folder / "resolved.toml").write_text(recipe)
    answer = {"prompt_id": "a:report", "case_id": "a", "task": "report", "text": "Nothing seen."}
    bare_run.line("answers/01-evaluate.jsonl", **answer, images=[uri])
    drawn = {"text": "No.", "total": 0.0, "advantage": 0.0, "malformed": None, "rewards": {}}
    about = {"step": 1, "stage": "01-grpo", "reference": {"report": "Secret words of a report."}}
    bare_run.line("rollouts/01-grpo.jsonl", **answer, **about, images=[uri], rollouts=[drawn])
    return bare_run


def test_reports_of_real_patients_are_shown_only_when_asked_for(real_run):
    hidden = Elements(written(real_run)).text
    assert "Secret words" not in hidden
    assert "evid page RUN --show-reports" in hidden
    assert "phantom" not in hidden.lower()
    assert "Secret words of a report." in Elements(written(real_run, show_reports=True)).text


def test_a_dataset_that_cannot_be_opened_is_named_and_stops_nothing(real_run, tmp_path):
    (tmp_path / "scans" / "cases.csv").unlink()
    text = Elements(written(real_run)).text
    assert "Data set 'site' could not be read" in text
    assert "cases.csv" in text
    assert "Nothing seen." in text


def test_sections_of_observers_stand_on_the_page_and_failed_ones_are_named(fake_run):
    record = read_record(fake_run.folder)
    section = ("Attention <map>", "<p id='theirs'>mine</p>")
    page = document(record, [section], {"broken": "ValueError: no map"})
    assert "<h2>Attention &lt;map&gt;</h2><div><p id='theirs'>mine</p></div>" in page
    assert "Observer broken failed and added no section: ValueError: no map" in page


def test_an_observer_that_is_no_longer_installed_is_named(bare_run):
    resolved = (bare_run.folder / "resolved.toml").read_text()
    (bare_run.folder / "resolved.toml").write_text(f'observers = ["attention-map"]\n{resolved}')
    assert "Observer attention-map failed and added no section" in Elements(written(bare_run)).text


def test_the_same_run_gives_the_same_page(fake_run):
    assert written(fake_run) == written(fake_run)


def test_colours_can_be_read_in_light_and_dark():
    style = resources.files("evidcore_plugin_pages").joinpath("style.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in style.split("@media", 2)[:2]
    )
    assert len(light) > 15
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        for ink in ("ink", "soft", "accent", "other", "blank", "bad", "good"):
            for ground in ("paper", "panel"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        assert contrast(theme["banner-ink"], theme["banner"]) >= 4.5
        for series in range(6):
            assert contrast(theme[f"s{series}"], theme["paper"]) >= 3.0


def contrast(first: str, second: str) -> float:
    """WCAG 2.2 contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)
