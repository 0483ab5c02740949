"""Column `boxes` of data set `table`: boxes on a picture become masks of its case."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tables_home
from PIL import Image
from tables_home import refusal

from evidcore.api import Case, read, read_mask
from evidcore.registry.factory import build

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

WIDTH, HEIGHT = 12, 10
ROW: dict[str, Any] = {"id": "q0", "image": "a.png", "patient": "p0", "split": "train",
                       "question": "Is there a lesion?", "A": "yes", "B": "no", "answer": "A",
                       "boxes": "lesion=2 1 5 4"}  # fmt: skip


class Home(tables_home.Home):
    """A folder with two pictures of 12 x 10 pixels, a volume, and a table of questions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        values = np.arange(WIDTH * HEIGHT, dtype=np.uint8).reshape(HEIGHT, WIDTH)
        for name in ("a.png", "b.JPG"):
            Image.fromarray(values).save(folder / name)
        self.scan("v.nii.gz", np.zeros((WIDTH, HEIGHT, 3), np.int16))

    def csv(self, *rows: dict[str, Any]) -> None:
        super().csv(rows)

    def json(self, *rows: dict[str, Any]) -> None:
        (self.folder / "questions.json").write_text(json.dumps(rows))

    def masks(self, **options: Any) -> dict[str, np.ndarray]:
        """Return the masks of the only case, (y, x), read back."""
        (case,) = self.dataset(**options).cases("train")
        return read_back(case)


def read_back(case: Case) -> dict[str, np.ndarray]:
    like = read(case.volumes[0])
    return {name: read_mask(ref, like=like)[0] for name, ref in case.masks.items()}


def inside(*boxes: tuple[int, int, int, int]) -> np.ndarray:
    """Return which pixels lie in one of the boxes, asked of each pixel."""
    return np.array([
        [any(x0 <= x < x1 and y0 <= y < y1 for x0, y0, x1, y1 in boxes) for x in range(WIDTH)]
        for y in range(HEIGHT)
    ])


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.csv(ROW)
    return home


@pytest.mark.parametrize("image", ["a.png", "b.JPG"])
def test_boxes_of_a_cell_become_masks_pixel_for_pixel(home, image):
    home.csv(ROW | {"image": image, "boxes": "lesion=2 1 5 4; heart = 0 0 12 10 ;lesion=4 3 6 9;"})
    masks = home.masks()
    assert masks.keys() == {"lesion", "heart"}
    assert np.array_equal(masks["lesion"], inside((2, 1, 5, 4), (4, 3, 6, 9)))
    assert masks["heart"].all()


@pytest.mark.parametrize(
    ("value", "boxes"),
    [({"lesion": [2, 1, 5, 4]}, [(2, 1, 5, 4)]),
     ({"lesion": [[2, 1, 5, 4], [7.5, 0, 8, 1]]}, [(2, 1, 5, 4), (7, 0, 8, 1)]),
     ("lesion=2 1 5 4;lesion=7 0 8 1", [(2, 1, 5, 4), (7, 0, 8, 1)]),
     ("lesion=2.9 1.5 4.1 3.01", [(2, 1, 5, 4)]),  # fractions are rounded outward
     (None, []), ("", []), ({}, [])],
)  # fmt: skip
def test_boxes_of_json_are_objects_or_texts_or_none(home, value, boxes):
    home.json(ROW | {"boxes": value})
    result = home.masks(table="questions.json")
    assert list(result) == ["lesion"] * bool(boxes)
    assert all(np.array_equal(mask, inside(*boxes)) for mask in result.values())


def test_a_case_with_several_pictures_or_a_volume_may_have_an_empty_cell(home):
    home.csv(*(ROW | {"id": image, "image": image, "boxes": ""} for image in ("a.png;b.JPG", "v.nii.gz")))
    assert [dict(case.masks) for case in home.dataset().cases("train")] == [{}, {}]


def test_boxes_stand_beside_masks(home):
    Image.fromarray(inside((0, 0, 3, 3)).astype(np.uint8)).save(home.folder / "m.png")
    home.csv(ROW | {"masks": "heart=m.png"})
    masks = home.masks()
    assert np.array_equal(masks["heart"], inside((0, 0, 3, 3)))
    assert np.array_equal(masks["lesion"], inside((2, 1, 5, 4)))


def test_the_column_may_be_named_be_absent_or_be_left_unread(home):
    assert home.masks(boxes_column="") == {}
    home.csv({"bbox" if name == "boxes" else name: cell for name, cell in ROW.items()})
    assert home.masks() == {}
    assert home.masks(boxes_column="bbox").keys() == {"lesion"}
    assert "has no column 'box'. Did you mean 'bbox'?" in refusal(home.dataset(boxes_column="box"))


def test_a_mask_is_written_when_its_case_is_asked_for_and_once_for_all_that_hold_the_same(home):
    home.csv(
        ROW | {"boxes": "lesion=2 1 5 4;lesion=2.5 1 5 4;nodule=2 1 5 4"},
        ROW | {"id": "q1", "image": "b.JPG", "boxes": "cyst=2 1 5 4"},
    )
    dataset = home.dataset()
    dataset.fingerprint()
    assert not (home.folder / "cache").exists()
    paths = {ref.path for case in dataset.cases("train") for ref in case.masks.values()}
    assert [str(path) for path in (home.folder / "cache/masks").glob("*.png")] == list(paths)
    (path,) = map(Path, paths)
    before = path.stat().st_mtime_ns
    list(home.dataset().cases("train"))
    assert path.stat().st_mtime_ns == before


def test_the_fingerprint_goes_by_the_boxes_and_not_by_the_cache(home):
    before = home.dataset().fingerprint()
    list(home.dataset().cases("train"))
    assert home.dataset().fingerprint() == before
    shutil.move(home.folder / "cache", home.folder / "elsewhere")
    given = {"recipe_folder": home.folder, "cache_folder": home.folder / "elsewhere"}
    moved = build("dataset", {"use": "table", "path": "."}, given=given, where="test")
    assert moved.fingerprint() == before
    assert home.dataset(boxes_column="").fingerprint() != before
    home.csv(ROW | {"boxes": "lesion=2 1 5 5"})
    assert home.dataset().fingerprint() != before


@pytest.mark.parametrize(("cell", "message"), TABLE["boxes"])
def test_a_bad_box_is_named_with_line_case_value_and_remedy(home, cell, message):
    home.csv(ROW | {"boxes": cell})
    said = refusal(home.dataset())
    assert said.startswith(f"{home.folder / 'questions.csv'}: line 2, case 'a.png', column 'boxes': ")
    assert message in said


@pytest.mark.parametrize(
    ("value", "got"),
    [({"lesion": []}, "got []"), ({"lesion": [2, 1, 5]}, "got [2, 1, 5]"),
     ({"lesion": [[2, 1, 5, 4], [2, 1, 5]]}, "got [2, 1, 5]"),
     ({"lesion": [2, 1, 5, float("nan")]}, "got [2, 1, 5, nan]"),
     ({"lesion": [0, 0, 1, True]}, "got [0, 0, 1, True]"),
     ({"lesion": [0, 0, 1, None]}, "got [0, 0, 1, None]"), ({"lesion": 3}, "got 3"),
     ({" ": [2, 1, 5, 4]}, "a box has no name, got {' ': [2, 1, 5, 4]}"),
     ([2, 1, 5, 4], "boxes are written name=x0 y0 x1 y1 with ';' between, got '[2, 1, 5, 4]'")],
)  # fmt: skip
def test_a_bad_box_of_json_is_named(home, value, got):
    home.json(ROW | {"boxes": value})
    said = refusal(home.dataset(table="questions.json"))
    assert said.startswith(f"{home.folder / 'questions.json'}: entry 1, case 'a.png', column 'boxes': ")
    assert got in said


def test_all_boxes_outside_a_picture_come_at_once(home):
    home.csv(ROW | {"boxes": "lesion=0 0 13 4; lesion=1 1 2 2; nodule=0 0 1 20"})
    assert [line.split(" got ")[1].split(".")[0] for line in refusal(home.dataset()).splitlines()] == [
        "'0 0 13 4'", "'0 0 1 20'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"image": "v.nii.gz"}, "boxes lie on a picture (.png, .jpg, .jpeg), got '{folder}/v.nii.gz'. Giv"),
        ({"image": "a.png;b.JPG"}, "boxes need a case of one picture, this one has 2. Name one picture, or"),
        ({"masks": "lesion=m.png"}, "'lesion' has boxes here and a mask in column 'masks'. Rename or drop o"),
    ],
)
def test_boxes_of_a_volume_of_several_pictures_or_beside_a_mask_are_refused(home, cells, message):
    home.csv(ROW | cells)
    place = f"line 2, case '{(ROW | cells)['image']}', column 'boxes': "
    assert place + message.format(folder=home.folder) in refusal(home.dataset())


def test_records_of_one_picture_must_agree(home):
    home.csv(ROW | {"boxes": "a=0 0 1 1;b=2 1 5 4;a=3 3 4 4"},
             ROW | {"id": "q1", "boxes": "b=2.0 1 5 4; a=3 3 4 4; a=0 0 1 1"})  # fmt: skip
    assert home.masks().keys() == {"a", "b"}
    home.csv(ROW, ROW | {"id": "q1", "boxes": "lesion=2 1 5 5"})
    told = "column 'boxes' says another text than an earlier record of this image. Make the records of one"
    assert f"line 3, case 'a.png': {told} image agree." in refusal(home.dataset())


def test_a_picture_that_cannot_be_read_is_named_with_its_case(home):
    (home.folder / "a.png").write_bytes(b"no picture")
    said = refusal(home.dataset())
    assert f"{home.folder / 'a.png'}: is not a readable picture" in said
    assert said.endswith("(case 'a.png')")
    dataset = home.dataset(missing="skip")
    assert list(dataset.cases("train")) == []
    assert list(dataset.left_out["train"]) == ["a.png"]


def test_boxes_outside_are_told_apart_and_the_rest_is_listed(home):
    home.csv(ROW | {"boxes": "lesion=0 0 13 4"}, ROW | {"id": "q1", "image": "b.JPG"},
             ROW | {"id": "q2", "image": "gone.png"})  # fmt: skip
    dataset = home.dataset()
    (message,) = dataset.unlisted()
    assert "line 2, case 'a.png', column 'boxes': box 'lesion' reaches outside its picture" in message
    assert [(case.id, list(case.masks)) for case in dataset.listed("train")] == [
        ("a.png", []), ("b.JPG", ["lesion"]), ("gone.png", []),
    ]  # fmt: skip
