"""Generation by requests to SGLang servers."""
