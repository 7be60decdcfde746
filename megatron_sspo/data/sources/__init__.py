"""Sources of prompts, one file for each: `rows` is what `Prompts.source` names."""
