"""What a model reads: data sets, views of them, patch geometry, texts and their tokens, batches."""
