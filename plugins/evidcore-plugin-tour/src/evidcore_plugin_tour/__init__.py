"""The first minute with evidcore: two small trained models, audited side by side."""
