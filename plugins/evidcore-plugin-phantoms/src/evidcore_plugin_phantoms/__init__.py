"""Phantoms: generated chest and abdominal CT whose truth is known, and phantom lesions in real scans."""
