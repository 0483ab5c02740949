"""`evid init`: a recipe for somebody's own scans, questions and vision-language model."""
