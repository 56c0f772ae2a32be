"""Do to real processes what the world does, and see whether what they leave is what an undisturbed run leaves."""
