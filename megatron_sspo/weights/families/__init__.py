"""One file a model family, named after the `model_type` of config.json.

It says what config.json may say (`check`), what Megatron is built with (`transformer_fields`, `model_fields`), and one
row for every parameter (`rows`): `weights/decoder.py` has what most families share, `weights/table.py` the rows.
`qwen2.py` is the shortest, `qwen3_moe.py` has experts.
"""
