"""The evidence page of a run: static, opens from disk without a network."""

from evidcore.page.document import NOTICE, write_page

__all__ = ["NOTICE", "write_page"]
