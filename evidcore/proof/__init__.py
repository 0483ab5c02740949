"""The pixel-flow proof: rows of real passes react to their own volume and to no other."""
