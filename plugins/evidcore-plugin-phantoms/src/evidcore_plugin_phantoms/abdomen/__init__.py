"""Abdominal phantoms: organs, lesions in them, reports, and queries that name neither."""
