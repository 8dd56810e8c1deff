"""FSDP2: standard PyTorch around the unmodified `transformers` model."""
