"""SGLang server processes and their router: start, health, restart, requests over HTTP."""
