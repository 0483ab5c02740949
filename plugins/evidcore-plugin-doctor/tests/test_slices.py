"""Slices that do not follow each other: each fault is planted into a body."""

import re

import numpy as np
import pytest
from evidcore_plugin_doctor.fault import Fault
from evidcore_plugin_doctor.slices import disordered


def said(volume):
    """What is told by the rule that one cause has one message."""
    faults = [
        Fault(check="slices", part=kind.partition("/")[2], case="a", severity=severity, text=text)
        for kind, (severity, text) in disordered(volume)
    ]
    return [fault.text for fault in faults if not fault.is_explained(faults)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, 68))
def test_the_slices_of_a_body_follow_each_other(tools, seed):
    assert said(tools.as_volume(tools.torso(seed))) == []
    assert said(tools.as_volume(tools.torso(seed)[10:40, 12:60, 8:70])) == []


def test_slices_of_one_value_very_few_slices_and_the_top_of_a_head_say_nothing(tools):
    array = tools.torso(1)
    array[:4], array[-3:] = -1000, -1000
    assert said(tools.as_volume(array)) == []
    assert said(tools.as_volume(array[[20, 50, 21, 40]])) == []
    head = tools.ellipsoid((-80, 0, 0), (90, 80, 70))  # its top ends within the scan
    array = np.where(head, 40, -1000) + np.random.default_rng(0).normal(0, 12, tools.SHAPE)
    assert said(tools.as_volume(array.astype(np.int16))) == []


def exchanged(array):
    array[[12, 40]] = array[[40, 12]]
    return array


OUT_OF_ORDER = "slices are unlike both neighbours|the slices are out of order"


@pytest.mark.parametrize(
    ("change", "spacing_mm", "told"),
    [
        (exchanged, None, r"^2 of 62 slices are unlike both neighbours, though .* alike: z = 12, 40\."),
        # slices lie along x, the coarsest axis
        (lambda hu: exchanged(hu).transpose(1, 2, 0).copy(), (3.0, 3.0, 6.0), r"x = 12, 40\."),
        (lambda hu: hu[[*range(0, 62, 2), *range(1, 62, 2)]], None, OUT_OF_ORDER),
        (lambda hu: hu[np.random.default_rng(3).permutation(62)], None, OUT_OF_ORDER),
    ],
)
def test_slices_in_the_wrong_place_are_named(tools, change, spacing_mm, told):
    (text,) = said(tools.as_volume(change(tools.torso(2)), spacing_mm or tools.SPACING_MM))
    assert re.search(told, text), text


def test_a_slice_of_another_patient_is_named_on_mr_too(tools):
    array = tools.torso(2).astype(np.float32) + 1024
    array[30] = tools.torso(3)[8] + 1024
    (text,) = said(tools.as_volume(array, intensity="arbitrary"))
    assert "1 of 62 slices are unlike both neighbours" in text
    assert "z = 30." in text


@pytest.mark.slow
def test_interleaved_slices_are_like_slices_farther_off(tools):
    array = np.stack([np.roll(tools.torso(2)[30], number, axis=0) for number in range(24)])
    assert said(tools.as_volume(array)) == []
    (text,) = said(tools.as_volume(array[[*range(0, 24, 2), *range(1, 24, 2)]]))
    assert "of the 24 slices are less like their neighbours than like slices farther off" in text


@pytest.mark.parametrize("moved", [0, 3])
def test_two_phases_between_each_other_are_named_and_noise_is_not(tools, moved):
    array = tools.torso(4).astype(np.float32)
    assert said(tools.as_volume(array + np.random.default_rng(1).normal(0, 40, array.shape))) == []
    phase = np.roll(np.where((array > 20) & (array < 200), array + 60, array), moved, axis=1)
    array[1::2] = phase[1::2]
    (text,) = said(tools.as_volume(array))
    assert text.startswith("every second slice along z differs in the same way from its neighbours (")
    if not moved:  # of MR, slices in another place alone are told
        assert said(tools.as_volume(array + 1024, intensity="arbitrary")) == []


def test_a_repeated_slice_is_a_warning_with_its_number(tools):
    array = tools.torso(2)
    array[25] = array[24]
    ((_, (severity, text)),) = disordered(tools.as_volume(array))
    assert severity == "warning"
    assert text.startswith("1 of 62 slices hold the voxels of the slice before: z = 25.")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda hu: hu - 1024, "the median pixel by -10"),
        (lambda hu: hu + 100, "the median pixel by "),
        (lambda hu: 2 * hu, "the spread 2.0"),
        (lambda hu: -hu, "correlation -"),
    ],
)
def test_a_change_of_scale_within_a_scan_is_told_where_it_begins(tools, change, told):
    array = tools.torso(4).astype(np.float32)
    array[40:] = change(array[40:])
    (text,) = said(tools.as_volume(array))
    assert "Hounsfield units change from slice to slice at z = 40: " in text
    assert told in text


def test_brightness_of_mr_may_change_from_slice_to_slice(tools):
    array = tools.torso(4).astype(np.float32) + 1024
    array[40:] *= 1.5
    assert said(tools.as_volume(array, intensity="arbitrary")) == []


@pytest.mark.slow
def test_missing_slices_leave_a_step_that_stands_out(tools):
    array = np.stack([np.roll(tools.torso(2)[30], number, axis=0) for number in range(30)])
    ((_, (severity, text)),) = disordered(tools.as_volume(np.delete(array, range(12, 20), axis=0)))
    assert severity == "warning"
    assert "the step from z = 11 to 12 is " in text
