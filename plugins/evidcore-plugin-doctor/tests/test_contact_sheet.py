"""`evid data view`: what stands on the page, what is left out, and that texts of a set stay texts."""

import base64
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import lxml.html
import numpy as np
import pytest
from evidcore_plugin_doctor.contact_sheet import MOST_BYTES, gather, page
from evidcore_plugin_tables.target import open_target
from evidcore_testing.recipes import recipe_text
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
EVIL = "</script><img src=x onerror=\"document.title='broken'\"><b>bold</b>"
AFFECTED = "lung nodule"


def of(page: Any, name: str, class_: str = "") -> list[Any]:
    """Return the elements of a page."""
    return page.xpath(f"//{name}" + (f"[contains(concat(' ', @class, ' '), ' {class_} ')]" if class_ else ""))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, tools: Any) -> Path:
    """Four cases: one with a mask beside the middle, one cut off, one in the test split, one not in HU."""
    home, spot = tools.Home(tmp_path_factory.mktemp("planted")), np.zeros(tools.SHAPE, dtype=bool)
    spot[30:36, 20:28, 50:60] = True
    text = f"A nodule. {EVIL}"
    home.add("nodule", tools.torso(0), masks={AFFECTED: spot}, report=text, **{AFFECTED: "1"})
    path = home.add("cut", tools.torso(1), **{AFFECTED: "0"})
    path.write_bytes(path.read_bytes()[:-1000])
    home.add("tested", tools.torso(2), split="test", **{AFFECTED: "0"})
    home.add("unit", ((tools.torso(3) + 1024) / 4095).astype(np.float32), **{AFFECTED: ""})
    return home.write()


def viewed(evid: Any, folder: Path, *options: Any) -> tuple[Any, Any, str]:
    out = folder / "page.html"
    said = evid("data", "view", folder, "--out", out, "--processes", 1, *options)
    text = out.read_text(encoding="utf-8")
    return said, lxml.html.fromstring(text), text


@pytest.fixture(scope="module")
def seen(evid: Any, planted: Path) -> tuple[Any, Any, str]:
    """What the command prints of them, the page, and its text."""
    return viewed(evid, planted)


def test_each_case_has_three_planes_and_its_faults(seen, planted):
    said, result, _ = seen
    cards = of(result, "article")
    assert [card.text_content().split()[0] for card in cards] == ["nodule", "cut", "unit", "tested"]
    assert [card.get("data-split", "") for card in cards] == ["train", "train", "train", "test"]
    assert [json.loads(card.get("data-names", "")) for card in cards] == [[AFFECTED], [], [], []]
    assert "the gzip stream ends too early" in cards[1].text_content()
    assert "No picture" in cards[1].text_content()
    assert "scaled to a unit range" in cards[2].text_content()
    assert cards[0].get("data-checks", "") == cards[3].get("data-checks", "") == ""
    assert len(of(result, "figure", "plane")) == 9
    assert f"{planted.name}: 4 of 4 cases, 2 faults\n" in said.output
    assert "62 x 72 x 76" in cards[0].text_content()
    assert "6 x 5.5 x 5" in cards[0].text_content()


def test_planes_are_in_true_proportions_and_go_through_the_mask(seen, tools):
    _, result, _ = seen
    depth, height, width = (count * step for count, step in zip(tools.SHAPE, tools.SPACING_MM, strict=True))
    ratios = [float(item.get("style").split(":")[1]) for item in of(result, "div", "screen")[:3]]
    assert ratios == pytest.approx([width / height, width / depth, height / depth], abs=1e-3)
    widths = [float(item.get("style").split(":")[1].split()[0]) for item in of(result, "figure", "plane")[:3]]
    assert widths == pytest.approx([width, width, height], abs=0.1)  # one scale for all three
    captions = [item.text_content() for item in of(result, "figure", "plane")[:3]]
    assert captions[0].endswith("axial, slice 32 of 62") or captions[0].endswith("axial, slice 33 of 62")
    assert re.search(r"coronal, slice 2[34] of 72$", captions[1])
    assert re.search(r"sagittal, slice 5[45] of 76$", captions[2])
    assert "centre of lung nodule" in of(result, "article")[0].text_content()
    assert "middle of the volume" in of(result, "article")[3].text_content()


def test_an_outline_lies_where_the_mask_is(seen):
    _, result, _ = seen
    axial, coronal, sagittal = (path.get("d", "") for path in of(result, "path") if path.get("data-mask", ""))
    for drawn, rows, columns in (
        (axial, (20, 28), (50, 60)),
        (coronal, (62 - 36, 62 - 30), (50, 60)),  # head up
        (sagittal, (62 - 36, 62 - 30), (20, 28)),
    ):
        assert f"M{columns[0]} {rows[0]}H{columns[1]}" in drawn
        assert f"M{columns[0]} {rows[1]}H{columns[1]}" in drawn


def test_every_mask_has_a_switch_or_is_said_to_be_empty_or_not_drawn(evid, home, tools):
    labels = np.zeros(tools.SHAPE, dtype=np.uint8)
    for number in range(26):
        labels[10 + number, 30:34, 30:34] = number + 1
    file = home.mask("labels", labels)
    masks = {f"m{number}": f"{file}#{number}" for number in range(1, 28)}  # the last has no voxel
    home.add("c", tools.torso(0), masks=masks, m25="1")
    _, result, _ = viewed(evid, home.write())
    keys = of(result, "div", "keys")[0]
    shown = [item.text_content() for item in of(result, "span", "key") if item.text_content().startswith("m")]
    assert shown == ["m25", *(f"m{number}" for number in range(1, 24))]  # what is present comes first
    assert "empty: m27" in keys.text_content()
    assert "not drawn: m24, m26" in keys.text_content()
    assert "axial, slice 34 of 62" in of(result, "figure", "plane")[0].text_content()


def test_a_picture_shows_the_voxels_in_the_window_that_is_named(seen, tools):
    _, result, _ = seen
    card = of(result, "article")[3]
    assert (
        "mediastinum, -160 to 240 HU" in card.text_content() or "lung, -1350 to 150 HU" in card.text_content()
    )
    low, high = (-160, 240) if "mediastinum" in card.text_content() else (-1350, 150)
    source = of(result, "img")[-3].get("src", "")
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))), dtype=float)
    expected = np.clip((tools.torso(2)[31] - float(low)) / (high - low), 0, 1) * 255
    assert shown.shape == expected.shape
    assert np.abs(shown - expected).max() <= 255 / 63 / 2 + 1


def test_text_of_the_set_is_never_markup_and_is_not_printed(seen):
    said, result, text = seen
    assert not of(result, "b", "") or all(item.text_content() != "bold" for item in of(result, "b"))
    assert not any("onerror" in item.attrib for item in result.iter())
    assert EVIL in "".join(item.text_content() for item in of(result, "pre"))
    assert len(re.findall(r"<script", text)) == 1
    for secret in ("A nodule", "p-nodule", "onerror"):
        assert secret not in said.output + said.stderr
    assert "p-nodule" in text


def test_the_page_reaches_for_nothing_outside_itself(seen):
    _, result, text = seen
    assert not re.search(r"@import|url\(", text)
    for item in result.iter():
        assert item.tag not in ("link", "iframe", "object", "embed", "base")
        assert not item.get("src", "") or item.get("src", "").startswith("data:image/png;base64,")
        assert not item.get("href", "") or item.get("href", "").startswith("#")


def test_json_holds_numbers_and_no_text_or_name(evid, planted):
    said, _, _ = viewed(evid, planted, "--json")
    told = json.loads(said.stdout)
    result = told["datasets"][planted.name]
    assert result["errors"] == {"file": 1, "intensity": 1}
    assert result["cases"] == {"train": 3, "test": 1}
    assert result["findings"] == {AFFECTED: {"present": 1, "absent": 2}}
    assert result["distributions"]["spacing z, mm"]["train"]["50 %"] == 6.0
    assert [case["faults"] for case in result["shown_cases"]] == [{}, {"file": 1}, {"intensity": 1}, {}]
    assert told["bytes"] == (planted / "page.html").stat().st_size
    assert "p-nodule" not in said.stdout
    assert "A nodule" not in said.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "shown", "why"),
    [
        (("--limit", 2), ["nodule", "tested"], "2 are beyond the limit"),
        (("--split", "test"), ["tested"], "3 do not match the filters"),
        (("--case", "unit", "--case", "cut"), ["cut", "unit"], "2 do not match the filters"),
        (("--finding", AFFECTED), ["nodule"], "3 do not match the filters"),
    ],
)
def test_what_is_left_out_is_said_with_how_to_see_it(evid, planted, options, shown, why):
    said, result, _ = viewed(evid, planted, *options)
    assert [card.text_content().split()[0] for card in of(result, "article")] == shown
    (note,) = (item.text_content() for item in of(result, "p", "left-out"))
    assert f"{4 - len(shown)} of 4 cases are left out: {why}" in note
    assert note.endswith("See them with --limit N, --split NAME, --case ID, --finding NAME.")
    assert "see others with --limit, --split, --case or --finding" in said.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--case", "nodul"), "has no case 'nodul'. Did you mean 'nodule'? It lists 4 cases"),
        (("--finding", "lung nodul"), "no case shows 'lung nodul', as a finding or a mask. Did you mean"),
        (("--finding", AFFECTED, "--split", "test"), "none of its 4 cases is accepted by --split"),
    ],
)
def test_a_filter_that_accepts_nothing_is_named(evid, planted, options, said):
    assert said in evid("data", "view", planted, "--out", planted / "x.html", *options, exit_code=2).stderr


def test_only_an_earlier_page_is_written_over(evid, planted):
    viewed(evid, planted, "--limit", 1)
    viewed(evid, planted, "--limit", 1)
    (planted / "notes.html").write_text("mine")
    said = evid("data", "view", planted, "--out", planted / "notes.html", exit_code=2).stderr
    assert "notes.html: is there, and no page of this command" in said
    assert (planted / "notes.html").read_text() == "mine"
    (planted / "link.html").symlink_to(planted / "elsewhere.html")
    viewed(evid, planted, "--limit", 1, "--out", planted / "link.html")
    assert not (planted / "elsewhere.html").exists()


@pytest.mark.slow
def test_the_page_stays_below_its_size_whatever_texts_say(home, tools):
    long = "'" * 100_000  # each is five bytes on a page
    array = tools.torso(0)[:20, :20, :20]
    for number in range(160):
        names = {AFFECTED: "1"} if number % 2 else {}
        home.add(f"c{number}", array if number == 0 else None, report=long, **names)
    (dataset,) = open_target(home.write(), None, "hu").values()
    options = {"pictures_bytes": 1_000_000, "processes": 1, "progress": lambda count, total: None}
    text, no_room = page([gather(dataset, "set", limit=200, **options)], "'" * 100_000)
    assert len(text.encode()) <= MOST_BYTES
    cards = len(of(lxml.html.fromstring(text), "article"))
    assert cards + no_room == 160
    assert no_room > 0
    (note,) = (item.text_content() for item in of(lxml.html.fromstring(text), "p", "left-out"))
    assert f"{no_room} cases found no room within 15 MB: c" in note
    assert "… and 80000 more characters" in text


def test_a_photograph_is_one_picture_without_sides_of_the_body(evid, home):
    Image.fromarray(np.arange(6400, dtype=np.uint8).reshape(64, 100)).save(home.folder / "a.png")
    (home.folder / "questions.csv").write_text(
        "id,image,patient,split,question,answer\nq,a.png,p,test,Is there one?,no\n"
    )
    _, result, _ = viewed(evid, home.folder)
    assert [item.text_content() for item in of(result, "figure", "plane")] == ["picture"]
    assert of(result, "div", "screen")[0].get("style") == "aspect-ratio:1.5625"


def test_questions_show_their_options_and_the_right_one(evid, home, tools):
    tools.save_nifti(home.folder / "a.nii.gz", tools.torso(0), tools.SPACING_MM)
    (home.folder / "questions.csv").write_text(
        "id,image,patient,split,question,A,B,answer\nq,a.nii.gz,p,train,Which <i>organ</i>?,liver,spleen,B\n"
    )
    quiz = {"use": "table", "path": ".", "intensity": "hu", "option_columns": ["A", "B"]}
    stage = {"kind": "sft", "train": ["bridge", "language"], "steps": 1, "learning_rate": 1e-3}
    stage["data"] = [{"dataset": "quiz", "task": "choice"}]
    (home.folder / "quiz.toml").write_text(recipe_text(stage, dataset={"quiz": quiz}))
    out = home.folder / "quiz.html"
    evid("data", "view", home.folder / "quiz.toml", "--out", out, "--processes", 1)
    result = lxml.html.fromstring(out.read_text(encoding="utf-8"))
    assert "Which <i>organ</i>?" in of(result, "ul", "questions")[0].text_content()
    assert [item.text_content() for item in of(result, "li", "right")] == ["B) spleen"]


@pytest.fixture
def reader():
    """A page of a browser without a window; what goes wrong in it fails the test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = chromium.new_context(viewport={"width": 1300, "height": 900}, offline=True)
        opened = context.new_page()
        faults: list[str] = []
        opened.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        opened.on("pageerror", lambda error: faults.append(str(error)))
        yield opened
        chromium.close()
    assert faults == []


def pixels(reader, selector: str) -> np.ndarray[Any, Any]:
    shot = reader.locator(selector).first.screenshot()
    return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)


@pytest.mark.slow
def test_a_browser_switches_outlines_filters_and_goes_from_case_to_case(evid, planted, reader):
    viewed(evid, planted)
    reader.goto((planted / "page.html").as_uri())
    outlined = np.array([63, 212, 224])

    def seen() -> int:
        return int((np.abs(pixels(reader, ".axial .screen") - outlined).sum(axis=2) < 60).sum())

    assert seen() > 20
    reader.locator(".picture .keys input").first.uncheck()
    assert seen() == 0
    reader.locator(".picture .keys input").first.check()
    assert seen() > 20
    reader.keyboard.press("Escape")
    reader.locator("body").click(position={"x": 2, "y": 2})
    for key, at in (("j", 0), ("j", 1), ("k", 0)):
        reader.keyboard.press(key)
        assert (
            reader.evaluate("() => [...document.querySelectorAll('article')].indexOf(document.activeElement)")
            == at
        )
    reader.locator("select[name=faults]").select_option("any")
    assert reader.locator("article:visible").count() == 2
    assert reader.locator(".filters output").inner_text() == "2 of 4 cases"
    reader.locator("select[name=faults]").select_option("")
    reader.locator("select[name=finding]").select_option(AFFECTED)
    assert reader.locator("article:visible").count() == 1
    assert reader.title() != "broken"
