"""Settings of a trainer process that exist only with GPUs: its device, kernels, CUDA and NCCL, the host's memory."""
