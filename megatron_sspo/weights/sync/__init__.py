"""From a stream of Hugging Face-named tensors into SGLang's servers: one file a transport."""
