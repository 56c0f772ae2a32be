"""What all probes share: the question, its checks, the loop over images, the life cycle of a run."""
