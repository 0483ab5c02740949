"""The evidence page of a run: one HTML file that opens from disk without a network."""

from evidcore.page.document import write_page

__all__ = ["write_page"]
