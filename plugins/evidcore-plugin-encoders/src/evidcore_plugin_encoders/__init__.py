"""Encoders: a 3D vision transformer, timm's 2D backbones, and Qwen-VL's own vision tower with its merger."""
