"""Where and how long models compute: the device a recipe names, and seconds by named part."""
