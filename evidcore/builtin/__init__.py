"""The core's own components, the shortest of each kind. No room of the core imports it."""
