"""What several routers share: linear gates, top-k of a softmax, transport plans."""
