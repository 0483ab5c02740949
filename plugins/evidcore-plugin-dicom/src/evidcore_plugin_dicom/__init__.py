"""The file formats DICOM (series, segmentations, structure sets) and NRRD."""
