"""A real vLLM beside the library's models: ``make test-vllm``, in an environment of its own."""
