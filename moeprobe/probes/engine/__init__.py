"""What all probes share: the run specification, its checks, the loop over images, the life cycle of a run."""
