"""The rules of routers: gates, transport plans, top-k of a softmax."""
