"""Views of volumes and photographs as pictures: montage, projection, video, image."""
