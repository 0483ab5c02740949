"""DICOM series, segmentations and structure sets."""
