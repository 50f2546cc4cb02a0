"""What a run leaves behind: its folder, episodes, checkpoints, metrics, intervals and curves."""
