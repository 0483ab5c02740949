"""The command `evid audit segmenter`."""
