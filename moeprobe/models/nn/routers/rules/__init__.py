"""The rules of routers: linear gates, top-k of a softmax, transport plans."""
