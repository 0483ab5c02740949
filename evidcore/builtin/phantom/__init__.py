"""Generated CT phantoms: everything about a case is known, so what a model sees can be measured."""
