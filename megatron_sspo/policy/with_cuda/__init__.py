"""What a trainer process has only with a GPU: its device, its kernels, settings of CUDA and NCCL, the host's memory."""
