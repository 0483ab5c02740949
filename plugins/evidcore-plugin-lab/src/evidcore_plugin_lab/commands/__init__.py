"""The commands: `evid plan`, `evid ablate` and `evid predict`."""
