"""One file per model family, named after the `model_type` of config.json.

A file states which values config.json may have (`check`), the arguments for Megatron (`transformer_fields`,
`model_fields`), and one row per parameter (`rows`). `weights/decoder.py` has the parts that most families share,
`weights/table.py` the rows. `qwen2.py` is the shortest file; `qwen3_moe.py` has experts.
"""
