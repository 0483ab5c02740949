"""Whole data sets from the server: only what is needed, told beforehand, no network where none is needed."""

import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_ct_data.archives import unpack
from evidcore_plugin_ct_data.miniatures import write
from evidcore_plugin_ct_data.miniatures.abdomen import ATLAS, KITS
from evidcore_plugin_ct_data.miniatures.voxels import volume

from evidcore.api import DataError, read
from evidcore.registry import factory

COMMIT = "a" * 40


def build(name, folder, **options):
    given = {"recipe_folder": folder, "cache_folder": folder / "cache"}
    return factory.build("dataset", {"use": name, "revision": COMMIT, **options}, given=given, where=name)


@pytest.fixture
def ct_rate(hub, tmp_path):
    write("ct-rate", tmp_path / "published")
    hub.put("ibrahimhamamci/CT-RATE", tmp_path / "published")
    return lambda **options: build("ct-rate", tmp_path / "home", **options)


def volumes(hub):
    return [Path(name).name for name in hub.fetched() if name.endswith(".nii.gz")]


def test_only_the_volumes_of_the_chosen_patients_are_fetched(ct_rate, hub):
    cases = list(ct_rate(limit=1).cases("test"))
    assert sorted(volumes(hub)) == sorted(f"{case.id}.nii.gz" for case in cases)
    assert len({case.patient for case in cases}) == 1
    assert not any("train_" in name for name in hub.fetched())
    np.testing.assert_array_equal(read(cases[0].volumes[0]).shape_zyx, volume(0).shape)


def test_more_than_max_gb_is_never_fetched(ct_rate, hub):
    with pytest.raises(DataError, match=r"3 files, .* GB, are still to be fetched .*; max_gb = 1e-07"):
        list(ct_rate(max_gb=1e-7).cases("test"))
    assert volumes(hub) == []


def test_each_volume_is_fetched_once_when_its_case_is_asked_for(ct_rate, hub, caplog):
    assert len(list(ct_rate().listed("test"))) == 3
    assert volumes(hub) == []
    next(ct_rate().cases("test"))
    assert volumes(hub) == ["valid_1_a_1.nii.gz"]
    (told,) = [record.message for record in caplog.records if "still to be fetched" in record.message]
    assert told.startswith("https://huggingface.co/datasets/ibrahimhamamci/CT-RATE: 3 files, ")
    assert " GB, are still to be fetched into " in told
    assert len(list(ct_rate().cases("test"))) == 3
    assert volumes(hub) == ["valid_1_a_1.nii.gz", "valid_1_a_2.nii.gz", "valid_2_a_1.nii.gz"]
    hub.sent.clear()
    list(ct_rate().cases("test"))
    assert hub.fetched() == []


def test_nothing_is_asked_before_cases_are(ct_rate, hub):
    dataset = ct_rate()
    print_of_one = dataset.fingerprint()
    assert hub.asked == []
    assert print_of_one != ct_rate(reconstructions="first").fingerprint()
    list(dataset.cases("test"))
    assert dataset.fingerprint() == print_of_one


def test_a_volume_that_the_commit_lacks_stops_or_is_left_out(ct_rate, hub):
    del hub.files["ibrahimhamamci/CT-RATE"]["dataset/valid_fixed/valid_1/valid_1_a/valid_1_a_2.nii.gz"]
    with pytest.raises(DataError, match=r"valid_1_a_2.nii.gz: is not in commit aaaaaaaaaaaa of the set"):
        list(ct_rate().cases("test"))
    dataset = ct_rate(missing="skip")
    assert [case.id for case in dataset.cases("test")] == ["valid_1_a_1", "valid_2_a_1"]
    assert list(dataset.left_out["test"]) == ["valid_1_a_2"]


def test_own_files_beside_a_commit_are_in_the_fingerprint_and_fetched_ones_are_not(ct_rate, hub, tmp_path):
    shutil.copytree(tmp_path / "published", tmp_path / "home" / "mine")
    mine = tmp_path / "home/mine/dataset"
    own, fetched = (mine / f"valid_fixed/valid_1/valid_1_a/valid_1_a_{number}.nii.gz" for number in (1, 2))
    labels = mine / "multi_abnormality_labels/valid_predicted_labels.csv"
    reports = mine / "radiology_text_reports/validation_reports.csv"
    fetched.unlink()
    reports.unlink()
    dataset = ct_rate(path="mine")
    before = dataset.fingerprint()
    list(dataset.cases("test"))
    assert fetched.is_file()
    assert reports.is_file()
    assert ct_rate(path="mine").fingerprint() == before
    prints = {before}
    for file in (labels, own, fetched, reports):
        file.write_bytes(file.read_bytes().replace(b",1", b",0") + b"\n")
        prints.add(ct_rate(path="mine").fingerprint())
    assert len(prints) == 5


def test_a_fetched_table_counts_with_its_content_not_with_its_time(ct_rate, hub, tmp_path):
    shutil.copytree(tmp_path / "published", tmp_path / "home" / "mine")
    reports = tmp_path / "home/mine/dataset/radiology_text_reports/validation_reports.csv"
    reports.unlink()
    list(ct_rate(path="mine").cases("test"))
    before, facts = ct_rate(path="mine").fingerprint(), reports.stat()
    os.utime(reports, (1, 1))
    assert ct_rate(path="mine").fingerprint() == before
    reports.write_bytes(reports.read_bytes().replace(b"number", b"Number"))
    os.utime(reports, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert ct_rate(path="mine").fingerprint() != before


def test_what_the_folder_of_the_user_holds_is_not_fetched(ct_rate, hub, tmp_path):
    shutil.copytree(tmp_path / "published", tmp_path / "home" / "mine")
    (tmp_path / "home/mine/dataset/valid_fixed/valid_2/valid_2_a/valid_2_a_1.nii.gz").unlink()
    cases = list(ct_rate(path="mine").cases("test"))
    assert hub.fetched() == ["dataset/valid_fixed/valid_2/valid_2_a/valid_2_a_1.nii.gz"]
    assert Path(cases[-1].volumes[0].path).is_relative_to(tmp_path / "home" / "mine")


def test_another_commit_has_a_folder_of_its_own(ct_rate, hub):
    list(ct_rate(limit=1).cases("test"))
    hub.asked.clear()
    with pytest.raises(DataError, match=r"there is no commit 'b{40}'"):
        list(ct_rate(limit=1, revision="b" * 40).cases("test"))
    assert hub.asked


@pytest.fixture
def atlas(hub, tmp_path):
    """The set as published: archives of 232 cases."""
    write("abdomen-atlas-3-mini", tmp_path / "unpacked")
    published = tmp_path / "published"
    published.mkdir()
    for name in ("AbdomenAtlas3.0MiniWithMeta.csv", "TrainTestIDS"):
        (tmp_path / "unpacked" / name).rename(published / name)
    for kind, what in (("image_only", "images"), ("mask_only", "masks")):
        for first, last in ((1, 232), (233, 464)):
            name = f"AbdomenAtlas3_{what}_BDMAP_BDMAP_{first:08d}_BDMAP_{last:08d}.tar.gz"
            archive = published / kind / name
            archive.parent.mkdir(exist_ok=True)
            with tarfile.open(archive, "w:gz") as tape:
                for name in ATLAS:
                    if first <= int(name[-8:]) <= last:
                        tape.add(tmp_path / "unpacked" / kind / name, arcname=f"./{name}")
    hub.put("AbdomenAtlas/AbdomenAtlas3.0Mini", published)
    return lambda **options: build("abdomen-atlas-3-mini", tmp_path / "home", validation_share=0.0, **options)


def test_archives_are_fetched_once_and_only_wanted_cases_unpacked(atlas, hub, tmp_path):
    cases = list(atlas(ids=("BDMAP_00000002", "BDMAP_00000004")).cases("train"))
    assert [case.id for case in cases] == ["BDMAP_00000002", "BDMAP_00000004"]
    assert len(cases[0].masks) == 7
    np.testing.assert_array_equal(read(cases[0].volumes[0]).array, volume(1))
    assert sum("00000001_BDMAP_00000232" in name for name in hub.fetched()) == 2
    assert not any("00000233_BDMAP" in name for name in hub.fetched())
    kept = next((tmp_path / "home" / "cache" / "hub").glob("*/*"))
    assert {path.name for path in (kept / "image_only").iterdir()} == {case.id for case in cases}
    hub.sent.clear()
    more = list(atlas(ids=("BDMAP_00000002", "BDMAP_00000001")).cases("train"))
    assert [case.id for case in more] == ["BDMAP_00000001", "BDMAP_00000002"]
    assert not any(name.endswith(".tar.gz") for name in hub.fetched())


def test_what_was_unpacked_is_the_commits_until_it_is_changed(atlas, hub, tmp_path):
    def dataset():
        return atlas(ids=("BDMAP_00000002",), path="mine")

    before = dataset().fingerprint()
    (case,) = dataset().cases("train")
    assert dataset().fingerprint() == before
    image = Path(case.volumes[0].path)
    image.write_bytes(image.read_bytes() + b"\0")
    assert dataset().fingerprint() != before


def test_a_damaged_archive_is_named_and_leaves_nothing(atlas, hub, tmp_path):
    name = "image_only/AbdomenAtlas3_images_BDMAP_BDMAP_00000001_BDMAP_00000232.tar.gz"
    held = hub.files["AbdomenAtlas/AbdomenAtlas3.0Mini"]
    held[name] = held[name][: len(held[name]) // 2]
    with pytest.raises(DataError, match=r"BDMAP_00000232.tar.gz: the archive is damaged .*Delete it and"):
        list(atlas().cases("train"))
    assert not list((tmp_path / "home" / "cache" / "hub").glob("*/*/image_only/BDMAP_*"))


@pytest.mark.parametrize(
    ("packed", "change", "said"),
    [(zipfile.ZIP_LZMA, {}, "a.zip: 4/a is packed by another method than deflate"),
     (8, {"flag_bits": 1}, "a.zip: the archive is damaged .*encrypted"),
     (8, {"filename": "4/" + "a" * 300}, "a.zip: the archive is damaged .*too long"),
     (8, {"file_size": 1 << 60}, "a.zip: unpacks to more than is free in .*out. Free")],
)  # fmt: skip
def test_an_archive_that_cannot_be_unpacked_is_named(tmp_path, packed, change, said):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", packed) as archive:
        archive.writestr(change.pop("filename", "4/a"), b"x")
        for name, value in change.items():
            setattr(archive.filelist[0], name, value)
    with pytest.raises(DataError, match=said):
        unpack(tmp_path / "a.zip", {"4/"}, str, tmp_path / "out")
    assert not [*(tmp_path / "out").glob("4*")]


def test_a_set_in_several_archives_is_unpacked_from_each(hub, tmp_path):
    write("m3d-seg", tmp_path / "unpacked")
    for part, numbers in enumerate((range(2), range(2, 5))):
        archive = tmp_path / "published" / "M3D_Seg" / f"0004_{part + 1}.zip"
        archive.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive, "w") as file:
            if part == 0:
                file.write(tmp_path / "unpacked/0004/0004.json", "M3D_Seg/0004/0004.json")
            for number in numbers:
                for path in (tmp_path / f"unpacked/0004/case_{number:05d}").iterdir():
                    file.write(path, f"M3D_Seg/0004/case_{number:05d}/{path.name}")
    (tmp_path / "published" / "M3D_Seg" / "0012.zip").write_bytes(b"never wanted" * 500)
    hub.put("GoodBaiBai88/M3D-Seg", tmp_path / "published")
    dataset = build("m3d-seg", tmp_path / "home", codes=("0004",), validation_share=0.0)
    assert [case.id for case in dataset.cases("train")] == [f"0004/case_{number:05d}" for number in range(4)]
    assert [case.id for case in dataset.cases("test")] == ["0004/case_00004"]
    assert sorted(set(hub.fetched())) == ["M3D_Seg/0004_1.zip", "M3D_Seg/0004_2.zip"]
    with pytest.raises(DataError, match=r"has no archive of set '0023'. It has: M3D_Seg/0004_1.zip"):
        list(build("m3d-seg", tmp_path / "home", codes=("0023",)).cases("train"))


def test_stacks_and_texts_come_from_the_archives_that_are_named(hub, tmp_path):
    write("m3d-cap", tmp_path / "unpacked")
    shutil.rmtree(tmp_path / "unpacked" / "M3D_Cap_npy")
    published = tmp_path / "published"
    (published / "M3D_Cap").mkdir(parents=True)
    (tmp_path / "unpacked" / "M3D_Cap.json").rename(published / "M3D_Cap.json")
    with zipfile.ZipFile(published / "M3D_Cap" / "ct_case_00.zip", "w") as file:
        for path in sorted((tmp_path / "unpacked/M3D_Cap/ct_case").rglob("*.*")):
            file.write(path, f"ct_case_00/{path.relative_to(tmp_path / 'unpacked/M3D_Cap/ct_case')}")
    hub.put("GoodBaiBai88/M3D-Cap", published)
    archives = ("M3D_Cap/ct_case_00.zip",)
    dataset = build("m3d-cap", tmp_path / "home", archives=archives, missing="skip")
    (case,) = dataset.cases("test")
    assert case.report.text == "Generated findings, number 6."
    assert np.load(case.volumes[0].path).shape == (4, 6, 5)
    assert [case.id for case in dataset.cases("train")] == ["ct_case/000002/Coronal_C_"]


def test_images_of_kits_are_fetched_to_where_its_program_puts_them(hub, tmp_path):
    write("kits23", tmp_path / "clone")
    for name in KITS:
        place = tmp_path / "published" / "images" / f"{name}.nii.gz"
        place.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / "dataset" / name / "imaging.nii.gz").rename(place)
    hub.put("neheller/KiTS-Challenge-Imaging", tmp_path / "published")
    dataset = build("kits23", tmp_path, path="clone", ids=("case_00003",))
    before = dataset.fingerprint()
    (case,) = [case for split in ("train", "validation", "test") for case in dataset.cases(split)]
    np.testing.assert_array_equal(read(case.volumes[0]).array, volume(3))
    assert hub.fetched() == ["images/case_00003.nii.gz"]
    assert dataset.fingerprint() == before
    segmentation = tmp_path / "clone/dataset/case_00003/segmentation.nii.gz"
    segmentation.write_bytes(segmentation.read_bytes() + b"\0")
    assert dataset.fingerprint() != before


def test_pictures_come_from_one_archive_for_the_sets_that_are_named(hub, tmp_path):
    write("omni-med-vqa", tmp_path / "unpacked")
    (tmp_path / "published").mkdir()
    shutil.make_archive(str(tmp_path / "published" / "OmniMedVQA"), "zip", tmp_path / "unpacked")
    hub.put("foreverbeliever/OmniMedVQA", tmp_path / "published")
    dataset = build("omni-med-vqa", tmp_path / "home", sets=("ACRIMA",))
    cases = [case for split in ("train", "validation", "test") for case in dataset.cases(split)]
    assert len(cases) == 6
    assert all(Path(case.volumes[0].path).is_file() for case in cases)
    assert hub.fetched() == ["OmniMedVQA.zip"]
    with pytest.raises(DataError, match=r'must be named, such as sets = \["ACRIMA"\]'):
        list(build("omni-med-vqa", tmp_path / "home").cases("train"))
    with pytest.raises(DataError, match=r"OmniMedVQA.zip has no set 'ACRIM' in Open-access"):
        list(build("omni-med-vqa", tmp_path / "home", sets=("ACRIM",)).cases("train"))


def test_the_questions_of_m3d_are_fetched_and_their_images_are_not(hub, tmp_path):
    write("m3d-vqa", tmp_path / "set")
    (tmp_path / "set" / "M3D-VQA").rename(tmp_path / "published")
    hub.put("GoodBaiBai88/M3D-VQA", tmp_path / "published")
    dataset = build("m3d-vqa", tmp_path, path="set")
    assert [case.id for case in dataset.cases("validation")] == ["ct_case/000004/Sagittal_bone_window"]
    assert all(name.endswith(".csv") for name in hub.fetched())
    before = dataset.fingerprint()
    assert build("m3d-vqa", tmp_path, path="set").fingerprint() == before
    array = tmp_path / "set/M3D_Cap_npy/ct_case/000001/Axial_lung_window.npy"
    array.write_bytes(array.read_bytes() + b"\0")
    assert build("m3d-vqa", tmp_path, path="set").fingerprint() != before
