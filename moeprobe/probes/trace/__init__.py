"""Record routing, to be analyzed without the model."""
