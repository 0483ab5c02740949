"""What a recipe needs before it runs: memory, time, downloads, licences."""
