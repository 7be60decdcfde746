"""The transports that send the policy's weights to SGLang servers."""
