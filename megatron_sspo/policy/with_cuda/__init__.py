"""The parts of a trainer process that need a GPU: its device, its kernels, settings of CUDA and NCCL, the host's memory."""
