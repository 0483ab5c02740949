"""What must hold before anybody's code is loaded: pinned files, names that are not mistaken."""
