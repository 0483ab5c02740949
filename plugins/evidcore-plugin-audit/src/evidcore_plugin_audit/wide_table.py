"""A table whose lines are as long as they are: a terminal wraps them, and `grep` finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table without cutting a cell."""
    from rich.console import Console
    from rich.measure import measure_renderables

    console = Console(highlight=False)
    wide = console.options.update(max_width=10_000)
    console.width = max(console.width, measure_renderables(console, wide, [table]).maximum)
    console.print(table)
