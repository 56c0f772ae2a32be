"""Sparse vision transformers; importing ``vit`` registers its models with timm."""
