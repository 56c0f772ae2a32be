"""What all commands share: options, the screen, errors and the start of the process."""
