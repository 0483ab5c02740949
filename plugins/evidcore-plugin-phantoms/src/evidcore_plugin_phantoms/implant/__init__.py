"""Phantom lesions with exact masks, planted into real CT."""
