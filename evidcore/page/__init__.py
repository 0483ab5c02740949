"""Static pages that open from disk without a network: the evidence page of a run, the page of one answer."""

from evidcore.page.answer import write_answer_page
from evidcore.page.document import NOTICE, write_page

__all__ = ["NOTICE", "write_answer_page", "write_page"]
