"""Figures of mechanisms: a module measures one in a run and draws it."""
