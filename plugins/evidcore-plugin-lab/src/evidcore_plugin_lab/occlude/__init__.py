"""Where covering a part of the scan makes a model's answer less likely."""
