"""Transports of Hugging Face-named tensors to SGLang's servers: one file per transport."""
