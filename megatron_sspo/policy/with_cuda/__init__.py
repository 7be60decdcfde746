"""Settings of a trainer process that exist only with GPUs: its device, its kernels, and those of CUDA and NCCL."""
