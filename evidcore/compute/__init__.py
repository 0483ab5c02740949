"""Device, seconds by part, processes, signals: nothing knows models. Imported by model and all below."""
