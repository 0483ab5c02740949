from __future__ import annotations

import numpy as np
import pytest
from safetensors import safe_open

from evidcore.volume.cached_volume import Damaged, open_array, write_array

VALUES = np.arange(5 * 4 * 3, dtype=np.int16).reshape(5, 4, 3) - 30
FACTS = {"range": [-30.0, 29.5], "name": "é"}


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_array_and_facts_come_back(tmp_path, dtype):
    array = VALUES.astype(dtype) / 4 if dtype == np.float32 else VALUES
    path = tmp_path / "deep" / "a"
    write_array(path, array, FACTS)
    held = open_array(path)
    assert (held.shape, held.facts, held.is_on_disk) == ((5, 4, 3), FACTS, True)
    found = held.slices(1, 4)
    assert found.dtype == dtype
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, array[1:4])


def test_another_library_reads_the_file(tmp_path):
    write_array(tmp_path / "a.safetensors", VALUES, FACTS)
    with safe_open(tmp_path / "a.safetensors", "np") as file:
        assert set(file.keys()) == {"array", "checksums"}
        np.testing.assert_array_equal(file.get_tensor("array"), VALUES)


def test_where_nothing_is_nothing_is_found(tmp_path):
    assert open_array(tmp_path / "none") is None


def test_a_damaged_slice_is_found_when_it_is_used_and_others_are_not_read(tmp_path):
    path = tmp_path / "a"
    write_array(path, VALUES, FACTS)
    held = bytearray(path.read_bytes())
    held[held.index(VALUES[2].tobytes())] ^= 1
    path.write_bytes(held)
    array = open_array(path)
    np.testing.assert_array_equal(array.slices(0, 2), VALUES[:2])
    np.testing.assert_array_equal(array.slices(3, 5), VALUES[3:])
    with pytest.raises(Damaged, match="slice 2 of 5 has another checksum"):
        array.slices(1, 4)


def test_damage_anywhere_is_found(tmp_path):
    write_array(tmp_path / "a", VALUES, FACTS)
    right = (tmp_path / "a").read_bytes()

    def outcome(content):
        (tmp_path / "a").write_bytes(content)
        try:
            held = open_array(tmp_path / "a")
            return held.slices(0, len(VALUES)).tobytes(), held.facts
        except Damaged:
            return None

    assert outcome(right) == (VALUES.tobytes(), FACTS)
    for index in range(len(right)):
        found = outcome(right[:index] + bytes([right[index] ^ 1]) + right[index + 1 :])
        padding = found == (VALUES.tobytes(), FACTS)
        assert found is None or padding, f"byte {index} gives {found}"
    for length in range(len(right)):
        assert outcome(right[:length]) is None, f"the first {length} bytes pass"
