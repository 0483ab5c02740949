"""What runs wrote, read again: their list, two of them compared, their rollouts judged anew."""
