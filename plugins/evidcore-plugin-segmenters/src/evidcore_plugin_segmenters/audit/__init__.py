"""The audit of segmenters: masks of known objects, asked for by oracle prompts and by boxes that are off."""
